/* Part of the binding: the two sides of gates for Python, Gates for the parent and Gate for a worker. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GATE_HPP
#define SHOAL_GATE_HPP

#include "gates.h"
#include "guard.hpp"
#include "python.hpp"
#include "tickets.h"
#include "watch.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <vector>

namespace nb = nanobind;

/* The parent's side: all gates of one vector environment. */
class Gates {
  public:
    Gates(nb::object gates, nb::object wakeup, uint32_t count, int wakeup_fd, bool crowded, nb::object guard)
        : gates_array_(gates), wakeup_array_(wakeup), guard_object_(guard),
          guard_(guard.is_none() ? nullptr : &nb::cast<Guard &>(guard)),
          memory_(shoal_gates_bytes(count) / sizeof(void *) + 1) {
        shoal_gates_init(
            &all_, memory_.data(), static_cast<shoal_gate *>(memory_of(gates, count * sizeof(shoal_gate))),
            static_cast<shoal_wakeup *>(memory_of(wakeup, sizeof(shoal_wakeup))), count, wakeup_fd, crowded);
    }
    Gates(const Gates &) = delete;
    Gates &operator=(const Gates &) = delete;

    void watch(uint32_t worker, int fd, bool is_socket) {
        shoal_gates_watch(&all_, require_worker(worker), fd, is_socket);
    }
    bool idle(uint32_t worker) const { return shoal_gates_are_idle(&all_, require_worker(worker)) != 0; }
    void post(uint32_t worker, uint32_t command, uint32_t slot, uint64_t row, uint64_t mail_bytes) {
        shoal_gates_post(&all_, require_worker(worker), command, slot, row, mail_bytes);
    }

    /* Posts the same command to all workers, which are idle. With `if_all_live`, returns false and posts none
     * if one is known to be dead. */
    bool post_all(uint32_t command, uint32_t slot, uint64_t row, bool if_all_live) {
        if (if_all_live && !all_live())
            return false;
        shoal_gates_post_all(&all_, command, slot, row);
        return true;
    }

    /* Waits until all workers, or `only` that one, are idle, at most `timeout_ns`. SHOAL_WAIT_DIED: a worker
     * that it waits for is dead; with `any_death`, any worker, even one that has finished. */
    int wait(uint64_t timeout_ns, int64_t only, bool any_death) {
        if (only >= 0)
            require_worker(static_cast<uint32_t>(only));
        if (shoal_gates_are_idle(&all_, only))
            return SHOAL_WAIT_IDLE;
        shoal_wait wait = {shoal_now_ns(), timeout_ns, only, any_death, 0};
        return wait_unlocked([&] { return shoal_gates_wait(&all_, &wait); });
    }

    bool all_live() const { return shoal_gates_all_live(&all_) != 0; }

    /* The workers that are dead or dying. */
    nb::list dead() const {
        nb::list found;
        for (uint32_t w = 0; w < all_.count; w++)
            if (shoal_gates_is_dead(&all_, w))
                found.append(w);
        return found;
    }

    /* The reply of an idle worker; `reply` also clears it. */
    nb::tuple peek(uint32_t worker) const {
        const shoal_gate &gate = all_.gates[require_worker(worker)];
        return nb::make_tuple(gate.replied, gate.reply_bytes);
    }
    nb::tuple reply(uint32_t worker) {
        nb::tuple found = peek(worker);
        all_.gates[worker].replied = 0;
        return found;
    }
    /* Whether any worker sent a reply that was not taken. */
    bool replied() const {
        return std::any_of(all_.gates, all_.gates + all_.count,
                           [](const shoal_gate &gate) { return gate.replied != 0; });
    }
    nb::tuple times(uint32_t worker) const {
        const shoal_gate &gate = all_.gates[require_worker(worker)];
        return nb::make_tuple(gate.busy_ns, gate.env_ns);
    }

    /* Asynchronous stepping: gives each of `env_ids` a new ticket and posts to their workers. */
    void send(nb::object tickets, nb::object sent, nb::object env_ids, nb::object worker_of) {
        const Shared shared(tickets, tickets, sent);
        Buffer ids;
        ids.take(env_ids);
        const auto *owners =
            static_cast<const int64_t *>(memory_of(worker_of, shared.tickets.count * sizeof(int64_t)));
        if (shoal_tickets_send(&shared.tickets, &all_, static_cast<const int64_t *>(ids->buf),
                               static_cast<uint64_t>(ids->len) / sizeof(int64_t), owners) != 0)
            throw nb::index_error("no such environment or worker");
    }

    /* Asynchronous stepping: returns the status of the wait, and up to `most` environments that were sent and
     * have finished, beginning at `start`; fewer only after a timeout or a death. They are no longer marked
     * as sent. */
    nb::tuple take_finished(nb::object tickets, nb::object finished, nb::object sent, uint64_t start,
                            uint64_t most, uint64_t timeout_ns) {
        const Shared shared(tickets, finished, sent);
        shoal_wait wait = {shoal_now_ns(), timeout_ns, -1, true, 0};
        const int status =
            wait_unlocked([&] { return shoal_tickets_wait(&shared.tickets, &all_, &wait, most); });
        std::vector<uint64_t> env_ids(std::min(most, shared.tickets.count));
        env_ids.resize(shoal_tickets_take(&shared.tickets, start, env_ids.size(), env_ids.data()));
        nb::list taken;
        for (uint64_t env_id : env_ids)
            taken.append(env_id);
        return nb::make_tuple(status, taken);
    }

  private:
    /* The memory of tickets for one call. */
    struct Shared {
        Buffer ticket_view, finished_view, sent_view;
        shoal_tickets tickets;

        Shared(nb::handle ticket, nb::handle finished, nb::handle sent) {
            ticket_view.take(ticket);
            finished_view.take(finished);
            sent_view.take(sent);
            tickets = {static_cast<shoal_word *>(ticket_view->buf),
                       static_cast<shoal_word *>(finished_view->buf), static_cast<uint8_t *>(sent_view->buf),
                       static_cast<uint64_t>(sent_view->len)};
            if (std::min(ticket_view->len, finished_view->len) <
                sent_view->len * Py_ssize_t{sizeof(shoal_word)})
                throw nb::value_error("one ticket for each environment");
        }
    };

    uint32_t require_worker(uint32_t worker) const {
        if (worker >= all_.count)
            throw nb::index_error("no such worker");
        return worker;
    }

    /* Calls `wait` without the GIL until it returns a status; checks signals and close() in between. */
    template <typename Wait> int wait_unlocked(Wait wait) const {
        Unlocked unlocked;
        int status;
        while ((status = wait()) == SHOAL_WAIT_AGAIN)
            unlocked.with([this] { guard_ == nullptr ? check_signals() : guard_->check_interrupts(); });
        return status;
    }

    nb::object gates_array_, wakeup_array_, guard_object_; /* keep the memory */
    const Guard *guard_; /* of the environments; NULL: no other thread closes them */
    std::vector<void *> memory_;
    shoal_gates all_;
};

/* A worker's side: its own gate. */
class Gate {
  public:
    Gate(nb::object gates, nb::object wakeup, uint32_t worker, int wakeup_fd, bool crowded)
        : gates_array_(gates), wakeup_array_(wakeup) {
        shoal_worker_init(
            &worker_, static_cast<shoal_gate *>(memory_of(gates, (worker + 1) * sizeof(shoal_gate))),
            static_cast<uint32_t>(nb::len(gates)), worker,
            static_cast<shoal_wakeup *>(memory_of(wakeup, sizeof(shoal_wakeup))), wakeup_fd, crowded);
        (void)shoal_liveness_hold(&worker_.gate->liveness); /* without it, the parent polls descriptors */
    }
    ~Gate() { shoal_liveness_release(&worker_.gate->liveness); }
    Gate(const Gate &) = delete;
    Gate &operator=(const Gate &) = delete;

    uint32_t wait() {
        Unlocked unlocked;
        while (!shoal_worker_wait(&worker_))
            unlocked.with([] { check_signals(); });
        return worker_.gate->command;
    }
    uint32_t slot() const { return worker_.gate->slot; }
    uint64_t row() const { return worker_.gate->row; }
    uint64_t mail_bytes() const { return worker_.gate->mail_bytes; }
    void finish(uint32_t replied, uint64_t reply_bytes) {
        shoal_worker_finish(&worker_, replied, reply_bytes);
    }
    void add_env_ns(uint64_t ns) { worker_.gate->env_ns += ns; }
    shoal_worker *worker() { return &worker_; }

  private:
    nb::object gates_array_, wakeup_array_;
    shoal_worker worker_;
};

inline void start_watch(int parent_fd, int socket_fd, int stderr_fd, int out_fd, nb::object tail,
                        nb::object gate) {
    /* Kept until the process ends, because the threads run as long. Never destroyed: static objects are
     * destroyed after Python has ended, when nothing can be released any more. */
    static auto &kept = *new std::vector<nb::object>;
    kept.push_back(tail);
    kept.push_back(gate);
    require_success(
        shoal_watch_start(parent_fd, socket_fd, stderr_fd, out_fd,
                          static_cast<shoal_tail *>(memory_of(tail, sizeof(shoal_tail))),
                          &static_cast<shoal_gate *>(memory_of(gate, sizeof(shoal_gate)))->guard_liveness));
}

inline nb::bytes read_tail(nb::object tail) {
    char bytes[SHOAL_TAIL_BYTES];
    uint64_t count =
        shoal_tail_read(static_cast<const shoal_tail *>(memory_of(tail, sizeof(shoal_tail))), bytes);
    return nb::bytes(bytes, count);
}

/* The total number of bytes written to it. */
inline uint64_t count_tail(nb::object tail) {
    auto *memory = static_cast<const uint64_t *>(memory_of(tail, sizeof(shoal_tail)));
    static_assert(offsetof(shoal_tail, written) == 0, "the count comes first");
    return __atomic_load_n(memory, __ATOMIC_RELAXED);
}

#endif
