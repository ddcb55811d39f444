/* Asynchronous stepping: environments are sent in and come back in batches of the first ready ones.
 *
 *   send: units ---> [ queue ] ---> threads: step one unit into memory of their own ---> next places of the
 *                                            oldest unfilled batch, in order of finishing ---> recv: whole
 * batches
 *
 * 1. A unit is `lanes` neighbouring environments, the least that can be stepped. It is in the queue or in one
 * thread's hands once at most, so its environments have one writer.
 * 2. A thread takes ticket t (fetch_add) and waits until cell t holds a unit; after stepping it takes place p
 *    (fetch_add), copies its rows there and adds one to the batch's count (release; partner: recv's acquire).
 * 3. A batch is complete when its count is full. The sender lends enough batches before it sends, so a place
 * always exists. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_FLOW_H
#define SHOAL_FLOW_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_flow shoal_flow;

/* The engine has `units` blocks of the plug-in's lanes, of which the first `unit` environments are used:
 * environment e of the flow is unit e / unit, lane e % unit. `batch` environments come back at once, a
 * multiple of `unit`. The engine must not be stepped otherwise. 0 or -errno. */
int shoal_flow_create(shoal_engine *engine, const shoal_description *description, uint32_t threads,
                      uint64_t units, uint64_t unit, uint64_t batch, shoal_flow **flow);
void shoal_flow_destroy(shoal_flow *flow);

/* Where the actions of all environments lie, by environment; the sender writes a unit's rows before sending
 * it. */
void shoal_flow_actions(shoal_flow *flow, const void *const *actions);

/* How many batches must be lent before `units` more can be sent. */
uint64_t shoal_flow_wanting(const shoal_flow *flow, uint64_t units);
void shoal_flow_lend(shoal_flow *flow, const shoal_targets *targets, int64_t *env_ids);

/* Sending a unit that is under way is the caller's mistake. */
void shoal_flow_send(shoal_flow *flow, const uint64_t *units, uint64_t count);

/* Waits up to `timeout_ns` for the oldest batch: 1 if it is complete (and then it is taken), else 0. */
int shoal_flow_recv(shoal_flow *flow, uint64_t timeout_ns);

/* Whether a unit that was sent has been stepped; then it is at rest until it is sent again. `await` sleeps
 * until then, or for `timeout_ns`. */
int shoal_flow_is_done(const shoal_flow *flow, uint64_t unit);
void shoal_flow_await(const shoal_flow *flow, uint64_t unit, uint64_t timeout_ns);

/* Units sent and not yet received. */
uint64_t shoal_flow_under_way(const shoal_flow *flow);
void shoal_flow_statistics(const shoal_flow *flow, shoal_statistics *sum);

#ifdef __cplusplus
}
#endif
#endif
