/* Asynchronous stepping: send starts steps of some environments, recv returns batches of the first that are
 * ready.
 *
 *   send: units --> [ bits ] --> thread: steps some units into its own memory, --> [ batch ] --> recv: whole
 *         (send.h)  (pending.h)          copies them to places of a batch                          batches
 *
 * 1. A unit is up to `lanes` adjacent environments that are stepped together. It is pending, or one thread is
 *    stepping it, but never twice, so its environments have one writer.
 * 2. A thread takes the next units of its own part, one or several if they are cheap and many wait; if there
 *    are none, it takes those of others, or spins and then sleeps (rest.h). After stepping them it adds them
 *    to the number of units delivered (fetch_add), which says to which batch they belong, copies the rows
 *    there and adds to the batch's count (release; partner: recv's acquire).
 * 3. A batch is complete when its count is full. The caller adds enough batches before it sends, so there is
 *    always a place. A large batch is divided like the units, so that a thread writes to the same memory in
 *    every step. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_FLOW_H
#define SHOAL_FLOW_H

#include "send.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_flow shoal_flow;

/* The engine has `units` blocks of the plug-in's lanes; the first `unit` environments of each are used:
 * environment e of the flow is unit e / unit, lane e % unit. `unit` is a power of two. recv returns `batch`
 * environments, a multiple of `unit`. Nothing else may step the engine. Returns 0 or -errno. */
int shoal_flow_create(shoal_engine *engine, const shoal_description *description, uint32_t threads,
                      uint64_t units, uint64_t unit, uint64_t batch, shoal_flow **flow);
void shoal_flow_destroy(shoal_flow *flow);

/* Sets the action arrays, one row per environment, to which send copies. */
void shoal_flow_actions(shoal_flow *flow, void *const *actions);

/* How many batches must be added before `units` more can be sent. If the send is refused, they stay. */
uint64_t shoal_flow_batches_needed(const shoal_flow *flow, uint64_t units);
void shoal_flow_add_batch(shoal_flow *flow, const shoal_targets *targets, int64_t *env_ids);

/* Starts steps. Returns 0, with the reason, if the send is refused; then nothing was sent. `send_all` sends
 * all environments, none of which may be under way, with the actions that are in the arrays. */
int shoal_flow_send(shoal_flow *flow, const shoal_sending *sending, shoal_refusal *refusal);
void shoal_flow_send_all(shoal_flow *flow);

/* Waits up to `timeout_ns` for the oldest batch. Returns 1 and takes the batch if it is complete, else 0. */
int shoal_flow_recv(shoal_flow *flow, uint64_t timeout_ns);

/* Whether a unit that was sent has been stepped; then no thread touches it until it is sent again. `await`
 * sleeps until then, or for `timeout_ns`. */
int shoal_flow_is_done(const shoal_flow *flow, uint64_t unit);
void shoal_flow_await(const shoal_flow *flow, uint64_t unit, uint64_t timeout_ns);

/* Units sent and not yet received. */
uint64_t shoal_flow_under_way(const shoal_flow *flow);
void shoal_flow_statistics(const shoal_flow *flow, shoal_statistics *sum);

#ifdef __cplusplus
}
#endif
#endif
