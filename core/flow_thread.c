/* The threads of a flow: which units each takes, how it steps them, and how it delivers the results. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "flow_thread.h"

#include <string.h>

enum {
    LITTLE_NS = 100000,     /* work below this is left to fewer threads than there are cores */
    CHEAP_NS = 10000,       /* units of longer steps are never little work */
    MEAN_UNITS = 1 << 16,   /* the mean time of a unit is over about so many of the last ones */
    SLOW_TAKES = 5,         /* units whose steps took the time of so many are taken one by one next time */
    LATE_TAKES = 3,         /* a part is late if no thread has taken from it for the time of so many takes */
    TRY_AGAIN_RELAX = 4,    /* pauses between two tries: others need the cache lines to take units */
    FOR_ONE_NS = 10000,     /* one thread does less work than this alone, if no other spins */
    LEAST_TAKE_NS = 2000,   /* units of shorter steps are not taken one by one */
    WORTH_MOVING_NS = 2000, /* units whose steps take so long may move to any core */
};

static int has_work(const void *context) {
    const shoal_flow *flow = context;
    return shoal_flow_has_units(flow) || shoal_send_needs_help(&flow->send) ||
           atomic_load_explicit(&flow->stop, memory_order_relaxed);
}

/* The part of a thread in a division; NULL: it has none, like the last thread in division 1. */
static shoal_part *find_part_in(const shoal_flow *flow, const shoal_flow_worker *self, uint32_t division) {
    const shoal_pending *pending = &flow->pending[division];
    if (pending->num_parts == 0 || (division == 1 && self->number == pending->num_parts))
        return NULL;
    return &pending->parts[self->number % pending->num_parts];
}

static shoal_part *find_own(const shoal_flow *flow, const shoal_flow_worker *self) {
    return find_part_in(flow, self, shoal_flow_division(flow));
}

/* Says in the thread's parts of both divisions whether it sleeps. */
static void set_asleep(const shoal_flow *flow, const shoal_flow_worker *self, uint32_t is_asleep) {
    for (uint32_t division = 0; division < 2; division++) {
        shoal_part *part = find_part_in(flow, self, division);
        if (part != NULL)
            atomic_store_explicit(&part->is_asleep, is_asleep, memory_order_relaxed);
    }
}

/* Waits until there are units. Some threads spin; one core stays free for the caller. */
static void wait_for_units(shoal_flow *flow, shoal_flow_worker *self) {
    if (atomic_fetch_add(&flow->spinners, 1) < flow->most_spinners)
        (void)shoal_rest_spin(&flow->rest, &self->rest, has_work, flow);
    self->is_alone = atomic_fetch_sub(&flow->spinners, 1) == 1;
    if (has_work(flow))
        return;
    set_asleep(flow, self, 1);
    while (!has_work(flow))
        (void)shoal_rest_sleep(&flow->rest, &self->rest, has_work, flow);
    set_asleep(flow, self, 0);
}

/* Whether `waiting` units are so little work that it does not pay off to wake a thread for the last core. */
static int is_little(const shoal_flow *flow, uint64_t waiting) {
    const uint64_t unit_ns = atomic_load_explicit(&flow->unit_ns, memory_order_relaxed);
    return unit_ns != 0 && unit_ns < CHEAP_NS && waiting * unit_ns < LITTLE_NS;
}

/* If a thread spins, it sees the units. Both it and this function change one word by read-modify-write
 * operations, so a thread that counts as spinning here looks for units once more before it sleeps, and calls
 * this function if it leaves some. For little work, the last core is left to the caller; if one of the units
 * then takes long after all, recv wakes the others. */
void shoal_flow_wake_others(shoal_flow *flow, uint64_t waiting) {
    if (atomic_fetch_add(&flow->spinners, 0) != 0)
        return;
    const uint32_t awake = shoal_flow_count_awake(flow);
    const int is_short = is_little(flow, waiting);
    if (!is_short || awake == 0 || awake + 1 < flow->num_cpus)
        shoal_rest_wake(&flow->rest, is_short ? 1 : SHOAL_REST_FAN_OUT);
}

/* Whether `waiting` units are so little that one thread takes all: waking another would take longer. */
static int is_for_one(const shoal_flow *flow, const shoal_flow_worker *self, uint64_t waiting) {
    return self->is_alone && self->unit_ns != 0 && waiting <= flow->most &&
           waiting * self->unit_ns < FOR_ONE_NS;
}

void shoal_flow_wake_reserve(shoal_flow *flow) {
    atomic_fetch_add(&flow->reserve, 1);
    shoal_futex_wake(&flow->reserve);
}

/* Makes a take so large that a whole number of takes fills the places of a thread in a batch. */
static uint64_t fit_places(const shoal_flow *flow, uint64_t wanted) {
    if (flow->parts == NULL || wanted == 0)
        return wanted;
    const uint64_t places = flow->units_per_batch / flow->pending[shoal_flow_division(flow)].num_parts,
                   takes = (places + wanted - 1) / wanted;
    return (places + takes - 1) / takes;
}

/* How many units to take, if `waiting` are pending: about `take_ns` of work, but not more than a quarter of a
 * fair share, so that a batch is soon complete; or the whole share, if it is very little work. Enough units
 * for a batch are left, so that recv can return one even if a step hangs. */
static uint32_t count_to_take(const shoal_flow *flow, const shoal_flow_worker *self, uint64_t waiting) {
    if (self->unit_ns == 0)
        return 1;
    const uint64_t threads = flow->num_threads, share = (waiting + threads - 1) / threads;
    const uint64_t quarter = (share + 3) / 4, least = LEAST_TAKE_NS / self->unit_ns;
    const uint64_t fair = quarter > least ? quarter : share < least ? share : least;
    const uint64_t wanted = fit_places(flow, flow->take_ns / self->unit_ns);
    const uint64_t spare = flow->num_units - flow->units_per_batch;
    uint64_t most = is_for_one(flow, self, waiting) ? waiting : fair < wanted ? fair : wanted;
    most = spare != 0 && spare < most ? spare : most;
    return (uint32_t)(most < 1 ? 1 : most < flow->most ? most : flow->most);
}

/* The parts of both divisions: if the division has just changed, units of the other one are still pending. */
static uint32_t count_parts(const shoal_flow *flow) {
    return flow->pending[0].num_parts + flow->pending[1].num_parts;
}

static shoal_part *find_part(const shoal_flow *flow, uint32_t number) {
    const uint32_t first = flow->pending[0].num_parts;
    return number < first ? &flow->pending[0].parts[number] : &flow->pending[1].parts[number - first];
}

static int is_late(const shoal_flow *flow, const shoal_part *part, uint64_t now) {
    const uint64_t taken = atomic_load_explicit(&part->taken_ns, memory_order_relaxed);
    const uint64_t began = atomic_load_explicit(&flow->began_ns, memory_order_relaxed);
    return now > (taken > began ? taken : began) + LATE_TAKES * flow->take_ns ||
           atomic_load_explicit(&part->is_asleep, memory_order_relaxed);
}

/* Looks at one part after the other, and takes units of it if it is late. All threads do so between units of
 * their own: otherwise the units of a thread that is in a long step could wait for ever. */
static void take_late(const shoal_flow *flow, shoal_flow_worker *self, shoal_taken *taken) {
    self->next = self->next + 1 < count_parts(flow) ? self->next + 1 : 0;
    shoal_part *part = find_part(flow, self->next);
    if (part != find_own(flow, self) && is_late(flow, part, taken->now_ns))
        shoal_pending_take(part, taken);
}

/* Takes units of all parts that are late, or of any part if moving them to this core costs little, or if
 * there are more threads than cores: then the part's thread may have no core. */
static void take_from_all(const shoal_flow *flow, const shoal_flow_worker *self, shoal_taken *taken) {
    const uint32_t parts = count_parts(flow);
    const int is_any = self->unit_ns == 0 || self->unit_ns >= WORTH_MOVING_NS || !flow->rest.may_spin;
    for (uint32_t i = 1; i <= parts && !shoal_taken_is_full(taken); i++) {
        shoal_part *part = find_part(flow, (self->number + i) % parts);
        if (is_any || is_late(flow, part, taken->now_ns))
            shoal_pending_take(part, taken);
    }
}

static uint32_t try_take(const shoal_flow *flow, shoal_flow_worker *self, uint64_t waiting) {
    shoal_taken taken = {
        .units = self->units, .most = count_to_take(flow, self, waiting), .now_ns = self->now_ns};
    take_late(flow, self, &taken);
    shoal_part *own = find_own(flow, self);
    if (taken.count == 0 && own != NULL)
        shoal_pending_take(own, &taken);
    if (taken.count == 0 || is_for_one(flow, self, waiting))
        take_from_all(flow, self, &taken);
    return taken.count;
}

/* Waits for units and takes some. Returns how many; 0: the flow ends. */
static uint32_t take_units(shoal_flow *flow, shoal_flow_worker *self) {
    for (int has_waited = 0;;) {
        const uint32_t reserve = atomic_load(&flow->reserve);
        if (atomic_load(&flow->stop))
            return 0;
        if (shoal_send_needs_help(&flow->send))
            shoal_send_help(&flow->send, self->number);
        const int64_t waiting = atomic_load_explicit(&flow->waiting, memory_order_relaxed);
        const uint32_t count = waiting > 0 ? try_take(flow, self, (uint64_t)waiting) : 0;
        if (count != 0) {
            const int64_t left = atomic_fetch_sub(&flow->waiting, count) - count;
            if (has_waited && left > 0)
                shoal_flow_wake_others(flow, (uint64_t)left);
            return count;
        }
        if (find_own(flow, self) == NULL) {
            if (has_waited && waiting > 0) /* this thread was woken in place of another */
                shoal_flow_wake_others(flow, (uint64_t)waiting);
            shoal_futex_wait(&flow->reserve, reserve, SHOAL_REST_SLEEP_NS);
        } else if (waiting <= 0) {
            wait_for_units(flow, self);
            has_waited = 1;
        } else {
            for (int i = 0; i < TRY_AGAIN_RELAX; i++)
                shoal_relax();
        }
        self->now_ns = shoal_now_ns();
    }
}

/* Sets the worker's array pointers so that the results of environment `first` are written at row `at` of its
 * own memory. */
static void point_at(shoal_flow_worker *self, uint64_t first, uint64_t at) {
    const shoal_flow *flow = self->flow;
    const uint64_t row = first * flow->agents - at;
    for (uint64_t f = 0; f < flow->description->observations.count; f++)
        self->observations[f] = (void *)((uintptr_t)self->scratch[f] - row * self->envs.observation_bytes[f]);
    self->envs.rewards = (double *)((uintptr_t)self->rewards - row * sizeof(double));
    self->envs.terminated = (uint8_t *)((uintptr_t)self->flags - row);
    self->envs.truncated = (uint8_t *)((uintptr_t)self->flags + flow->rows - row);
}

/* Steps the units that the worker has taken: adjacent ones by one call, if their blocks have no unused lanes.
 */
static void step_units(shoal_flow_worker *self, uint32_t count) {
    const shoal_flow *flow = self->flow;
    for (uint32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && self->units[end] == self->units[end - 1] + 1; end++)
            if (flow->unit != flow->lanes)
                break;
        const uint64_t first = self->units[i] * flow->lanes;
        point_at(self, first, i * flow->unit * flow->agents);
        shoal_engine_step_range(flow->engine, &self->envs, first, first + (end - i) * flow->unit,
                                &self->statistics);
    }
}

/* Copies the results of units `begin` .. `end` of the worker to consecutive places of one batch. */
static void copy_results(const shoal_flow_worker *self, shoal_flow_batch *into, uint64_t place,
                         uint32_t begin, uint32_t end) {
    const shoal_flow *flow = self->flow;
    const uint64_t per_unit = flow->unit * flow->agents;
    const uint64_t from = begin * per_unit, to = place * per_unit, rows = (end - begin) * per_unit;
    for (uint64_t f = 0; f < flow->description->observations.count; f++) {
        const uint64_t bytes = self->envs.observation_bytes[f];
        memcpy((char *)into->observations[f] + to * bytes, self->scratch[f] + from * bytes, rows * bytes);
    }
    memcpy(into->targets.rewards + to, self->rewards + from, rows * sizeof(double));
    memcpy(into->targets.terminated + to, self->flags + from, rows);
    memcpy(into->targets.truncated + to, self->flags + flow->rows + from, rows);
    int64_t *ids = into->env_ids + place * flow->unit;
    for (uint32_t i = begin, next; i < end; i = next) { /* adjacent units by one loop, which is vectorised */
        for (next = i + 1; next < end && self->units[next] == self->units[next - 1] + 1;)
            next++;
        const int64_t first = (int64_t)(self->units[i] * flow->unit);
        const uint64_t count = (next - i) * flow->unit;
        for (uint64_t k = 0; k < count; k++)
            ids[k] = first + (int64_t)k;
        ids += count;
    }
}

/* Delivers units `begin` .. `end` of the worker to a batch that has places for them: to those of this thread,
 * whose memory is in its core's cache, and then to those of others. The search ends: the units of all threads
 * together are not more than the places, and no place becomes free again. */
static void deliver_to_parts(shoal_flow_worker *self, shoal_flow_batch *into, uint32_t begin, uint32_t end) {
    for (uint32_t at = self->number; begin < end; at++) {
        shoal_flow_places *part = &into->parts[at % into->num_parts];
        const uint64_t wanted = end - begin;
        if (atomic_load_explicit(&part->taken, memory_order_relaxed) >= part->count)
            continue;
        const uint64_t taken = atomic_fetch_add_explicit(&part->taken, wanted, memory_order_relaxed);
        const uint64_t room = taken < part->count ? part->count - taken : 0;
        const uint32_t got = (uint32_t)(wanted < room ? wanted : room);
        copy_results(self, into, part->first + taken, begin, begin + got);
        begin += got;
    }
}

static void deliver(shoal_flow_worker *self, uint32_t count) {
    shoal_flow *flow = self->flow;
    /* Acquire and release; partner: the other threads here. A batch is added before the send that needs it,
     * and among the units that were delivered up to these, at least one was sent after that, so its thread
     * has seen the batch. The chain of these operations makes it visible to this thread, too, even if its own
     * units were sent earlier. */
    uint64_t place = atomic_fetch_add_explicit(&flow->delivered, count, memory_order_acq_rel);
    for (uint32_t i = 0, end; i < count; i = end) {
        const uint64_t number = place / flow->units_per_batch, in_batch = place % flow->units_per_batch;
        const uint64_t room = flow->units_per_batch - in_batch;
        shoal_flow_batch *into = &flow->batches[number % flow->num_batches];
        end = count - i < room ? count : i + (uint32_t)room;
        if (into->parts != NULL)
            deliver_to_parts(self, into, i, end);
        else
            copy_results(self, into, in_batch, i, end);
        for (uint32_t k = i; k < end; k++) /* release; partner: is_done */
            atomic_store_explicit(&flow->send.stages[self->units[k]], SHOAL_IN_BATCH + number,
                                  memory_order_release);
        const uint32_t added = end - i;
        place += added;
        const uint32_t full = atomic_fetch_add_explicit(&into->count, added, memory_order_acq_rel) + added;
        if (full == flow->units_per_batch) {
            atomic_fetch_add(&flow->completed, 1);
            if (atomic_load(&flow->awaited))
                shoal_futex_wake(&flow->completed);
        }
    }
}

/* The mean is over many units, so it includes rare long steps. If these are a large part of the time, the
 * mean is above `take_ns`, and units are taken one by one: then a long step delays no other unit. The mean
 * does not include taking and delivering: otherwise small takes, which cost more for each unit, would make
 * the next ones even smaller. */
static void learn_unit_ns(shoal_flow_worker *self, uint64_t took_ns, uint32_t count) {
    self->sum_ns += took_ns;
    self->sum_units += count;
    if (self->sum_units > MEAN_UNITS) {
        self->sum_ns /= 2;
        self->sum_units /= 2;
    }
    self->unit_ns = self->sum_ns / self->sum_units + 1;
    /* The shared number changes rarely, so that its line stays in every cache. */
    const uint64_t shared = atomic_load_explicit(&self->flow->unit_ns, memory_order_relaxed);
    if (self->unit_ns > shared + shared / 2 || self->unit_ns < shared / 2)
        atomic_store_explicit(&self->flow->unit_ns, self->unit_ns, memory_order_relaxed);
}

void *shoal_flow_run_thread(void *argument) {
    shoal_flow_worker *self = argument;
    shoal_flow *flow = self->flow;
    self->now_ns = shoal_now_ns();
    for (uint32_t count; (count = take_units(flow, self)) != 0;) {
        const uint64_t begin = shoal_now_ns();
        step_units(self, count);
        self->now_ns = shoal_now_ns();
        shoal_pending_mark(&flow->pending[shoal_flow_division(flow)], self->units, count,
                           self->now_ns - begin > SLOW_TAKES * flow->take_ns);
        deliver(self, count);
        learn_unit_ns(self, self->now_ns - begin, count);
    }
    return NULL;
}
