/* Part of the binding: gates as the two sides see them, Gates for the parent and Gate for one worker. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_GATE_HPP
#define SHOAL_GATE_HPP

#include "gate.h"
#include "guard.hpp"
#include "python.hpp"
#include "watch.h"

#include <nanobind/nanobind.h>

#include <poll.h>
#include <sched.h>

#include <atomic>
#include <string>
#include <vector>

namespace nb = nanobind;

/* The parent's side: all gates of one vector environment. */
class Gates {
  public:
    enum Status { IDLE = 0, TIMEOUT = 1, DIED = 2 };

    Gates(nb::object gates, nb::object bell, uint32_t count, int bell_fd, bool crowded, nb::object guard)
        : gates_array_(gates), bell_array_(bell), guard_object_(guard),
          guard_(guard.is_none() ? nullptr : &nb::cast<Guard &>(guard)),
          gates_(static_cast<shoal_gate *>(memory_of(gates, count * sizeof(shoal_gate)))),
          bell_(static_cast<shoal_bell *>(memory_of(bell, sizeof(shoal_bell)))), bell_fd_(bell_fd),
          workers_(count), crowded_(crowded), patience_(shoal_patience_new(crowded, count > 1)) {}

    /* The descriptor that tells of a worker's death: a pidfd (readable) or a socket (hangs up). -1: there is
     * no worker, and it counts as idle. */
    void watch(uint32_t worker, int fd, bool is_socket) {
        workers_.at(worker) = {fd, is_socket};
        if (fd < 0)
            for (shoal_life *life : {&gates_[worker].life, &gates_[worker].guard_life})
                life->at.store(0);
        atomic_store_explicit(&gates_[worker].done, atomic_load(&gates_[worker].go),
                              std::memory_order_relaxed);
    }

    bool idle(uint32_t worker) const {
        return workers_.at(worker).fd < 0 || shoal_gate_idle(&gates_[worker]) != 0;
    }

    /* Posts a command to one worker. It must be idle. */
    void post(uint32_t worker, uint32_t command, uint32_t slot, uint64_t row, uint64_t mail_bytes) {
        if (workers_.at(worker).fd < 0)
            return;
        shoal_gate &gate = gates_[worker];
        gate.slot = slot;
        gate.row = row;
        gate.mail_bytes = mail_bytes;
        shoal_gate_post(&gate, command);
    }

    /* Posts the same command to every worker, all idle; with `if_all_live`, to nobody (false) where one is
     * known to be dead. */
    bool post_all(uint32_t command, uint32_t slot, uint64_t row, bool if_all_live) {
        if (if_all_live && !all_live())
            return false;
        for (uint32_t w = 0; w < workers_.size(); w++)
            post(w, command, slot, row, 0);
        return true;
    }

    /* Waits until every worker is idle, or `only` that one, at most `timeout_ns`. DIED: a worker that is
     * waited for is dead; with `any_death`, any of them is, though it had done its part. */
    int wait(uint64_t timeout_ns, int64_t only, bool any_death) {
        if (only >= 0)
            workers_.at(static_cast<size_t>(only));
        std::vector<shoal_gate *> busy;
        if (none_busy(busy, only))
            return IDLE;
        Unlocked unlocked;
        return wait_unlocked(timeout_ns, only, any_death, unlocked);
    }

    /* Whether all workers are there, and nobody's sign of life is over: a look at memory alone. */
    bool all_live() const {
        for (uint32_t w = 0; w < workers_.size(); w++)
            if (workers_[w].fd < 0 || is_over(w))
                return false;
        return true;
    }

    /* The workers that are dead, or dying: the kernel may still be taking their memory apart. */
    nb::list dead() const {
        nb::list found;
        for (uint32_t w = 0; w < workers_.size(); w++)
            if (is_dead(w))
                found.append(w);
        return found;
    }

    /* What an idle worker replied. Once only: the message is not there a second time. */
    nb::tuple reply(uint32_t worker) {
        workers_.at(worker);
        shoal_gate &gate = gates_[worker];
        const uint32_t replied = gate.replied;
        gate.replied = 0;
        return nb::make_tuple(replied, gate.reply_bytes);
    }
    /* Whether any worker replied with more than its rows, and that was not taken. */
    bool replied() const {
        for (uint32_t w = 0; w < workers_.size(); w++)
            if (gates_[w].replied != 0)
                return true;
        return false;
    }
    nb::tuple times(uint32_t worker) const {
        workers_.at(worker);
        return nb::make_tuple(gates_[worker].busy_ns, gates_[worker].env_ns);
    }

    /* Asynchronous stepping: a new ticket for each of `env_ids`, then a word to their workers, unless those
     * are looking for tickets anyway. Sequentially consistent: partner Chunk.serve, which looks once more
     * after it has said that it is idle. */
    void send(nb::object tickets, nb::object out, nb::object env_ids, nb::object worker_of,
              uint32_t command) {
        Buffer asked, sent, ids, owners;
        asked.take(tickets);
        sent.take(out);
        ids.take(env_ids);
        owners.take(worker_of);
        auto *ticket = static_cast<shoal_word *>(asked->buf);
        auto *flag = static_cast<uint8_t *>(sent->buf);
        auto *id = static_cast<const int64_t *>(ids->buf);
        auto *owner = static_cast<const int64_t *>(owners->buf);
        const size_t count = static_cast<size_t>(ids->len) / sizeof(int64_t);
        std::vector<bool> told(workers_.size());
        for (size_t i = 0; i < count; i++) {
            flag[id[i]] = 1;
            ticket[id[i]].fetch_add(1);
        }
        for (size_t i = 0; i < count; i++) {
            const auto w = static_cast<uint32_t>(owner[id[i]]);
            if (!told.at(w) && workers_[w].fd >= 0 && gates_[w].done.load() == gates_[w].go.load())
                post(w, command, 0, 0, 0);
            told[w] = true;
        }
    }

    /* Asynchronous stepping: up to `most` environments, from `start` round, that were sent (`out`) and have
     * finished what was asked of them; fewer only at a timeout or a death. Their `out` is cleared. */
    nb::tuple take_finished(nb::object tickets, nb::object finished, nb::object out, uint64_t start,
                            uint64_t most, uint64_t timeout_ns) {
        Buffer asked, answered, sent;
        asked.take(tickets);
        answered.take(finished);
        sent.take(out);
        const size_t count = static_cast<size_t>(sent->len);
        auto *ticket = static_cast<shoal_word *>(asked->buf);
        auto *done = static_cast<shoal_word *>(answered->buf);
        auto *flag = static_cast<uint8_t *>(sent->buf);
        auto ready = [&] {
            size_t number = 0;
            for (size_t e = 0; e < count; e++)
                number += flag[e] && done[e].load() == ticket[e].load(std::memory_order_relaxed);
            return number;
        };
        int status = IDLE;
        {
            const uint64_t begin = shoal_now_ns();
            Unlocked unlocked;
            while (ready() < most) {
                const uint64_t waited = shoal_now_ns() - begin;
                if (waited >= timeout_ns) {
                    status = TIMEOUT;
                    break;
                }
                if (waited < 100000) {
                    sched_yield();
                    continue;
                }
                Watched watched = watch_all(true, -1);
                shoal_bell_arm(bell_, SHOAL_BELL_ALL | watched.how());
                if (ready() >= most) {
                    shoal_bell_disarm(bell_);
                    break;
                }
                if (sleep(watched, timeout_ns - waited) && any_dead()) {
                    status = DIED;
                    break;
                }
                unlocked.with([this] { check_interrupts(); });
            }
        }
        nb::list taken;
        for (size_t k = 0; k < count && nb::len(taken) < most; k++) {
            const size_t e = (start + k) % count;
            if (flag[e] && done[e].load() == ticket[e].load(std::memory_order_relaxed)) {
                flag[e] = 0;
                taken.append(e);
            }
        }
        return nb::make_tuple(status, taken);
    }

  private:
    struct Worker {
        int fd = -1;
        bool is_socket = false;
    };

    void check_interrupts() const { guard_ == nullptr ? check_signals() : guard_->check_interrupts(); }

    static bool counts(uint32_t w, int64_t only) { return only < 0 || w == only; }

    bool none_busy(std::vector<shoal_gate *> &busy, int64_t only) {
        busy.clear();
        for (uint32_t w = 0; w < workers_.size(); w++)
            if (counts(w, only) && !idle(w))
                busy.push_back(&gates_[w]);
        return busy.empty();
    }

    bool is_over(uint32_t w) const {
        return shoal_life_is_over(&gates_[w].life) || shoal_life_is_over(&gates_[w].guard_life);
    }
    bool is_dead(uint32_t w) const {
        if (workers_[w].fd < 0)
            return false;
        if (is_over(w))
            return true;
        pollfd one = {workers_[w].fd, static_cast<short>(workers_[w].is_socket ? 0 : POLLIN), 0};
        return poll(&one, 1, 0) > 0;
    }
    bool any_dead() const {
        for (uint32_t w = 0; w < workers_.size(); w++)
            if (is_dead(w))
                return true;
        return false;
    }

    /* Whose deaths end a sleep, and how they are heard of: by words, or by descriptors if there are any. */
    struct Watched {
        std::vector<shoal_life *> lives;
        std::vector<pollfd> polled;

        uint32_t how() const { return polled.empty() ? SHOAL_BELL_BY_WORD : 0; }
    };

    Watched watch_all(bool idle_too, int64_t only) const {
        Watched watched;
        std::vector<shoal_life *> guards;
        for (uint32_t w = 0; w < workers_.size(); w++) {
            if (workers_[w].fd < 0)
                continue;
            /* All others too, until the thread that rings has ended: it may die between its two steps. */
            const bool heard = counts(w, only) && (idle_too || !idle(w));
            const bool may_ring = gates_[w].life.at.load() != 0 && !shoal_life_is_over(&gates_[w].life);
            if (heard || may_ring)
                watched.lives.push_back(&gates_[w].life);
            if (heard && gates_[w].guard_life.at.load() != 0)
                guards.push_back(&gates_[w].guard_life);
        }
        const size_t own = watched.lives.size();
        watched.lives.insert(watched.lives.end(), guards.begin(), guards.end());
        for (size_t count : {watched.lives.size(), own}) { /* of many workers, without their guards' */
            watched.lives.resize(count);
            if (shoal_lives_can_be_watched(watched.lives.data(), static_cast<uint32_t>(count)))
                return watched;
        }
        watched.polled = {{bell_fd_, POLLIN, 0}};
        for (uint32_t w = 0; w < workers_.size(); w++)
            if (workers_[w].fd >= 0 && counts(w, only) && (idle_too || !idle(w)))
                watched.polled.push_back(
                    {workers_[w].fd, static_cast<short>(workers_[w].is_socket ? 0 : POLLIN), 0});
        return watched;
    }

    /* Whether there is reason to look for deaths: one was heard of, or nothing at all for a whole slice. */
    bool sleep(Watched &watched, uint64_t timeout_ns) {
        if (!watched.polled.empty())
            return shoal_bell_sleep(bell_, watched.polled.data(),
                                    static_cast<uint32_t>(watched.polled.size()), timeout_ns,
                                    &patience_) != 0;
        const uint64_t begin = shoal_now_ns();
        return shoal_bell_sleep_beside(bell_, watched.lives.data(),
                                       static_cast<uint32_t>(watched.lives.size()), timeout_ns,
                                       &patience_) != 0 ||
               shoal_now_ns() - begin >= SHOAL_GATE_SLICE_NS;
    }

    int wait_unlocked(uint64_t timeout_ns, int64_t only, bool any_death, Unlocked &unlocked) {
        const uint64_t begin = shoal_now_ns();
        std::vector<shoal_gate *> busy;
        bool slept = false;
        for (;;) {
            if (none_busy(busy, only) ||
                shoal_gates_look(busy.data(), static_cast<uint32_t>(busy.size()), &patience_)) {
                if (crowded_ && !slept)
                    shoal_bell_here(bell_, false);
                return IDLE;
            }
            const uint64_t waited = shoal_now_ns() - begin;
            if (waited >= timeout_ns)
                return TIMEOUT;
            Watched watched = watch_all(any_death, only);
            slept = true;
            if (crowded_)
                shoal_bell_here(bell_, true);
            const uint32_t whom = only < 0 ? SHOAL_BELL_ALL : SHOAL_BELL_ONE + static_cast<uint32_t>(only);
            shoal_bell_arm(bell_, whom | watched.how()); /* partner: shoal_gate_finish */
            if (none_busy(busy, only)) {
                shoal_bell_disarm(bell_);
                return IDLE;
            }
            if (sleep(watched, timeout_ns - waited))
                for (uint32_t w = 0; w < workers_.size(); w++)
                    if (counts(w, only) && is_dead(w) && (any_death || !idle(w)))
                        return DIED;
            unlocked.with([this] { check_interrupts(); });
        }
    }

    nb::object gates_array_, bell_array_, guard_object_; /* keep the memory */
    const Guard *guard_;                                 /* of the environments; NULL: nobody else closes */
    shoal_gate *gates_;
    shoal_bell *bell_;
    int bell_fd_;
    std::vector<Worker> workers_;
    bool crowded_;
    shoal_patience patience_;
};

/* A worker's side: its own gate. */
class Gate {
  public:
    Gate(nb::object gates, nb::object bell, uint32_t worker, int bell_fd, bool crowded)
        : gates_array_(gates), bell_array_(bell), count_(static_cast<uint32_t>(nb::len(gates))),
          worker_(worker),
          gates_(static_cast<shoal_gate *>(memory_of(gates, (worker + 1) * sizeof(shoal_gate)))),
          gate_(gates_ + worker), bell_(static_cast<shoal_bell *>(memory_of(bell, sizeof(shoal_bell)))),
          bell_fd_(bell_fd), seen_(gate_->done.load()), crowded_(crowded),
          patience_(shoal_patience_new(crowded, false)) {
        (void)shoal_life_hold(&gate_->life); /* without, the parent polls descriptors */
    }
    ~Gate() { shoal_life_release(&gate_->life); }
    Gate(const Gate &) = delete;
    Gate &operator=(const Gate &) = delete;

    uint32_t wait() {
        const uint32_t before = seen_;
        if (crowded_ && ++waits_ % 64 == 0)
            shoal_gate_spread(gates_, count_, worker_, bell_);
        {
            Unlocked unlocked;
            while ((seen_ = shoal_gate_wait(gate_, before, &patience_)) == before)
                unlocked.with([] { check_signals(); });
        }
        began_ = shoal_now_ns();
        return gate_->command;
    }
    uint32_t slot() const { return gate_->slot; }
    uint64_t row() const { return gate_->row; }
    uint64_t mail_bytes() const { return gate_->mail_bytes; }

    void finish(uint32_t replied, uint64_t reply_bytes) {
        gate_->replied = replied;
        gate_->reply_bytes = reply_bytes;
        if (gate_->command == SHOAL_STEP)
            gate_->busy_ns += shoal_now_ns() - began_;
        shoal_gate_finish(gates_, count_, worker_, seen_, bell_, bell_fd_);
    }
    void add_env_ns(uint64_t ns) { gate_->env_ns += ns; }
    bool asked_anew() const { return gate_->go.load() != seen_; }
    /* After the store of a finished word: wakes a parent that sleeps. */
    void ring() { shoal_bell_ring(bell_, bell_fd_); }

  private:
    nb::object gates_array_, bell_array_;
    uint32_t count_, worker_;
    shoal_gate *gates_, *gate_;
    shoal_bell *bell_;
    int bell_fd_;
    uint32_t seen_;
    uint64_t began_ = 0, waits_ = 0;
    bool crowded_;
    shoal_patience patience_;
};

inline void start_watch(int parent_fd, int socket_fd, int said_fd, int out_fd, nb::object tail,
                        nb::object gate) {
    static std::vector<nb::object> kept; /* for the life of the process, as the thread */
    kept.push_back(tail);
    kept.push_back(gate);
    checked(shoal_watch_start(parent_fd, socket_fd, said_fd, out_fd,
                              static_cast<shoal_tail *>(memory_of(tail, sizeof(shoal_tail))),
                              &static_cast<shoal_gate *>(memory_of(gate, sizeof(shoal_gate)))->guard_life));
}

inline nb::bytes read_tail(nb::object tail) {
    char bytes[SHOAL_TAIL_BYTES];
    uint64_t count =
        shoal_tail_read(static_cast<const shoal_tail *>(memory_of(tail, sizeof(shoal_tail))), bytes);
    return nb::bytes(bytes, count);
}

/* How many bytes were ever written to it. */
inline uint64_t count_tail(nb::object tail) {
    auto *memory = static_cast<const uint64_t *>(memory_of(tail, sizeof(shoal_tail)));
    static_assert(offsetof(shoal_tail, written) == 0, "the count comes first");
    return __atomic_load_n(memory, __ATOMIC_RELAXED);
}

#endif
