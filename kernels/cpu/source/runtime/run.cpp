// Runs operators: the tape, and the thread pool that plays it.
//
// OpenMP's threads are not used because ours must yield: between two steps, and when the gateway needs their core, they
// sleep after spinning for some microseconds. OpenMP's keep spinning, which on a busy machine costs several times what
// it saves.
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "amx_product.h"
#include "placing.h"
#include "team.h"

struct Entry {
  Operator run;
  const Args* args;
  int64_t alone_rows;  // up to which one thread has done it before another has heard of it
};

namespace {

struct Tape {
  const Entry* entries;
  int64_t count;
  const Pass* pass;
  double* seconds;  // of each entry, added to; or null

  bool is_for_one(int64_t i) const {
    return !seconds && row_count(*entries[i].args, *pass) <= entries[i].alone_rows;
  }

  // The index after the single-threaded entries from i on.
  int64_t after_those_for_one(int64_t i) const {
    while (i < count && is_for_one(i)) i++;
    return i;
  }

  void run(int64_t i, Work& work) const {
    entries[i].run(*entries[i].args, *pass, work);
    release_tiles();
  }

  void run_alone(int64_t first, int64_t end) const {
    Team nobody_else;
    Work work(nobody_else, 0, 1, 0);
    for (int64_t i = first; i < end; i++) {
      const int64_t started = seconds ? now_ns() : 0;
      run(i, work);
      work.begin_stage();
      if (seconds) seconds[i] += 1e-9 * double(now_ns() - started);
    }
  }
};

// Helper threads sleep until there is a tape to play. One tape at a time; the caller is thread 0.
class Pool {
 public:
  // Returns false, having done nothing, if another caller uses the helpers.
  bool try_play(const Tape& tape, int num_threads) {
    if (is_taken_.exchange(true, std::memory_order_acquire)) return false;
    play(tape, num_threads);
    is_taken_.store(false, std::memory_order_release);
    return true;
  }

 private:
  void play(const Tape& tape, int num_threads) {
    const int64_t first = tape.after_those_for_one(0);
    tape.run_alone(0, first);
    if (first == tape.count) return;
    gather(num_threads);
    pin_thread(0);
    tape_ = &tape;
    first_ = first;
    num_threads_ = num_threads;
    first_stage_ = team_.stage.read();
    team_.open();
    bell_.write(bell_.read() + 1);
    Work work(team_, 0, num_threads, first_stage_);
    play(work);
    team_.close();
  }

  void gather(int num_threads) {
    if (team_.stage.read() > 1 << 30) {  // nobody is inside: count from the beginning again
      team_.stage.write(0);
      team_.parts.clear();
    }
    if (int(team_.parts.size()) < num_threads) team_.parts = std::vector<Part>(num_threads);
    sigset_t all, before;
    sigfillset(&all);
    // Signals are left to Python's threads. On Linux this equals pthread_sigmask, of which glibc 2.32 introduced a new
    // symbol version: with it, prebuilt libraries would not run on older versions.
    sigprocmask(SIG_SETMASK, &all, &before);
    for (; num_helpers_ < num_threads - 1; num_helpers_++)
      std::thread(&Pool::help, this, num_helpers_ + 1, bell_.read()).detach();
    sigprocmask(SIG_SETMASK, &before, nullptr);
  }

  void help(int number, int32_t heard) {
    for (;;) {
      const auto has_rung = [&] { return bell_.read() != heard; };
      while (!look(LOOK_NS, has_rung)) bell_.sleep_while(heard);
      heard = bell_.read();
      pin_thread(number);
      const uint32_t number_of_play = team_.play();
      if (number_of_play % 2 == 0 || !team_.enter(number_of_play)) continue;
      if (number >= num_threads_) {
        team_.leave();
        continue;
      }
      Work work(team_, number, num_threads_, first_stage_);
      if (play(work, number_of_play)) team_.leave();
    }
  }

  // Plays as the caller; returns when everything is done.
  void play(Work& work) {
    const Tape& tape = *tape_;
    int64_t started = tape.seconds ? now_ns() : 0;
    for (int64_t i = first_, next; i < tape.count; i = next) {
      tape.run(i, work);
      next = tape.after_those_for_one(i + 1);
      end_stage(work, i + 1, next);
      const auto is_past = [&] { return team_.is_past(work.stage()); };
      while (!look(LOOK_NS, is_past)) team_.stage.sleep_while(work.stage());
      work.begin_stage();
      if (!tape.seconds) continue;
      const int64_t ended = now_ns();  // of one begins the other: together they are the whole time
      tape.seconds[i] += 1e-9 * double(ended - started);
      started = ended;
    }
  }

  // Plays as a helper that has entered; returns whether it is still inside when nothing is left to do.
  bool play(Work& work, uint32_t number_of_play) {
    const Tape& tape = *tape_;
    for (int64_t i = first_; i < tape.count;) {
      tape.run(i, work);
      const int64_t next = tape.after_those_for_one(i + 1);
      end_stage(work, i + 1, next);
      if (next == tape.count) return true;
      if (!await_next(work, number_of_play)) return false;
      work.begin_stage();
      i = next;
    }
    return true;
  }

  // The last thread of a stage also runs the single-threaded entries that follow, which saves all others a barrier.
  void end_stage(Work& work, int64_t first_alone, int64_t end_alone) {
    if (!work.report()) return;
    tape_->run_alone(first_alone, end_alone);
    work.advance();
  }

  // Waits until the stage is over. A helper that waits for long leaves, so that it blocks nobody; returns false if the
  // play ended meanwhile.
  bool await_next(const Work& work, uint32_t number_of_play) {
    const auto is_past = [&] { return team_.is_past(work.stage()); };
    if (look(SHORT_LOOK_NS, is_past)) return true;
    team_.leave();
    const auto may_go_on = [&] { return is_past() || team_.play() != number_of_play; };
    while (!look(LOOK_NS, may_go_on)) team_.stage.sleep_while(work.stage());
    return team_.enter(number_of_play);
  }

  std::atomic<bool> is_taken_{false};  // no mutex: to try one asks for glibc 2.34
  Team team_;
  Signal bell_;
  int num_helpers_ = 0;

  // The tape of this play; only read by threads that have entered.
  const Tape* tape_ = nullptr;
  int64_t first_ = 0;
  int num_threads_ = 1;
  int32_t first_stage_ = 0;
};

// The pool of this process: threads do not survive a fork. Never freed, because helpers may use it at exit.
std::atomic<Pool*> pool_of_process{nullptr};

Pool& pool() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { pool_of_process.store(nullptr); });
  (void)registered;
  Pool* found = pool_of_process.load();
  if (found) return *found;
  Pool* made = new Pool;
  if (pool_of_process.compare_exchange_strong(found, made)) return *made;
  delete made;  // another thread was first
  return *found;
}

}  // namespace

// Runs entries one after the other. `seconds`: null, or the time of each is added. If another engine of this process is
// using the helpers, the call runs on one thread instead of waiting.
extern "C" void baton_run(const Entry* entries, int64_t count, const Pass* pass, int64_t num_threads,
                          double* seconds) {
  const Tape tape{entries, count, pass, seconds};
  if (num_threads > 1 && pool().try_play(tape, int(num_threads))) return;
  tape.run_alone(0, count);
}
