// A rank for the cluster tests that does what its arguments say, one step after another:
//   join[:fresh]               with the place in the environment
//   rejoin[:MS[:fresh]]        leaves what is there, joins again, and waits up to MS for the daemon
//   epoch                      prints it
//   past:NAME                  prints what is known of the bucket's epoch before
//   bucket:NAME:DTYPE:ELEMENTS[:gradient|exact[:LAYER]]     DTYPE float32, float64, int32 or int64
//   layers:NAME:COUNT:ELEMENTS[:gradient]     one bucket of many layers
//   buckets:PREFIX:COUNT:ELEMENTS             many buckets
//   destroy:NAME
//   submit:NAME  wait:NAME[:MS]               an allreduce in two steps
//   reduce:NAME[:TIMES]                       filled with rank + 1, the sum checked where the codec is none
//   all:PREFIX:SEED                           one reduce of each such bucket, in an order of the rank's own
//   count                      how many times the last "reduce" has gone well
//   time:NAME:TIMES                           reduces, and prints the median of their times
//   noise:NAME[:TIMES]  zeros:NAME            compressed sums of noise, of zeros; prints the result's size
//   poison:NAME                               one NaN; the result must be NaN and flagged
//   broadcast:NAME:ROOT  allgather:NAME  scatter:NAME       checked
//   barrier  leave  sleep:MS  forever
//   until:PATH                 waits for that file
//   fork:MS                    a child that lives so long with all descriptors open; prints its process id
//   user:UID                   becomes that user
//   expect:STATUS:STEP         the step must fail with this status; prints the sentence
//   linger                     from here on, stay after an error until killed
// After each step it prints "ok STEP SECONDS [REST]", or "error STEP SECONDS STATUS: SENTENCE" and ends with
// code 1.
#include <fcntl.h>
#include <gradwire/gradwire.h>
#include <grp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rank_buckets.h"

namespace {

using cluster::must;
using cluster::Wrong;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMinuteMs = 60'000;  // no child outlives its test for longer

class Words {
 public:
  explicit Words(const std::string& step) : words_(1) {
    for (const char c : step) {
      if (c == ':') {
        words_.emplace_back();
      } else {
        words_.back() += c;
      }
    }
  }
  const std::string& text(size_t i) const { return words_.at(i); }
  std::string text(size_t i, const char* otherwise) const {
    return i < words_.size() ? words_[i] : otherwise;
  }
  uint64_t number(size_t i) const { return std::stoull(words_.at(i)); }
  uint64_t number(size_t i, uint64_t otherwise) const { return i < words_.size() ? number(i) : otherwise; }

 private:
  std::vector<std::string> words_;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void sleep_ms(uint64_t ms) {
  ::usleep(static_cast<useconds_t>(ms * 1000));
}

[[noreturn]] void stay() {
  for (;;) {
    ::pause();
  }
}

void become(uid_t user) {
  if (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0 ||
      ::setresuid(user, user, user) != 0) {
    throw Wrong("usage: only root can become another user");
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the change of user has cleared it
}

// The child holds all that the parent has open, but for the test's pipe.
pid_t fork_child(uint64_t ms) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
    sleep_ms(std::min(ms, kMinuteMs));
    ::_exit(0);
  }
  return child;
}

class Rank {
 public:
  Rank() {
    verbs_ = {
        {"join", [this](const Words& w) { return join(0, w.text(1, "") == "fresh"); }},
        {"rejoin",
         [this](const Words& w) { return leave(false), join(w.number(1, 0), w.text(2, "") == "fresh"); }},
        {"epoch", [this](const Words&) { return "epoch=" + std::to_string(gw_epoch(job_)); }},
        {"past", [this](const Words& w) { return past(w.text(1)); }},
        {"bucket",
         [this](const Words& w) {
           create(w.text(1), {w.text(2), 1, w.number(3), w.text(4, "") == "gradient",
                              w.text(5, (w.text(1) + ".weight").c_str())});
           return std::string();
         }},
        {"layers",
         [this](const Words& w) {
           create(w.text(1),
                  {"float32", w.number(2), w.number(3), w.text(4, "") == "gradient", w.text(1) + ".layer"});
           return std::string();
         }},
        {"buckets",
         [this](const Words& w) {
           for (uint64_t i = 0; i < w.number(2); ++i) {
             create(w.text(1) + std::to_string(i), {"float32", 1, w.number(3), false, "weight"});
           }
           return std::string();
         }},
        {"destroy", [this](const Words& w) { return buckets_.destroy(w.text(1)), std::string(); }},
        {"submit", [this](const Words& w) { return buckets_.submit(w.text(1)), std::string(); }},
        {"wait",
         [this](const Words& w) {
           return buckets_.wait(w.text(1), std::stoll(w.text(2, "-1"))), std::string();
         }},
        {"reduce",
         [this](const Words& w) { return repeat(w.number(2, 1), [&] { buckets_.reduce(w.text(1)); }); }},
        {"count", [this](const Words&) { return "count=" + std::to_string(count_); }},
        {"all",
         [this](const Words& w) { return buckets_.reduce_all(w.text(1), w.number(2)), std::string(); }},
        {"time", [this](const Words& w) { return time(w.text(1), w.number(2)); }},
        {"noise", [this](const Words& w) { return pour(w.text(1), w.number(2, 1), true); }},
        {"zeros", [this](const Words& w) { return pour(w.text(1), 1, false); }},
        {"poison", [this](const Words& w) { return buckets_.poison(w.text(1)), std::string(); }},
        {"broadcast",
         [this](const Words& w) {
           return buckets_.broadcast(w.text(1), static_cast<int>(w.number(2))), std::string();
         }},
        {"allgather", [this](const Words& w) { return buckets_.allgather(w.text(1)), std::string(); }},
        {"scatter", [this](const Words& w) { return buckets_.reduce_scatter(w.text(1)), std::string(); }},
        {"barrier", [this](const Words&) { return must(gw_barrier(job_, -1)), std::string(); }},
        {"leave", [this](const Words&) { return leave(true), std::string(); }},
        {"sleep", [](const Words& w) { return sleep_ms(w.number(1)), std::string(); }},
        {"forever", [](const Words&) -> std::string { stay(); }},
        {"until",
         [](const Words& w) {
           while (::access(w.text(1).c_str(), F_OK) != 0) {
             sleep_ms(2);
           }
           return std::string();
         }},
        {"fork", [](const Words& w) { return "child=" + std::to_string(fork_child(w.number(1))); }},
        {"user", [](const Words& w) { return become(static_cast<uid_t>(w.number(1))), std::string(); }},
        {"linger", [this](const Words&) { return lingers_ = true, std::string(); }},
    };
  }

  bool lingers() const { return lingers_; }

  // What is to be printed of it.
  std::string step(const std::string& text) {
    const Words words(text);
    if (words.text(0) == "expect") {
      return expect(words.text(1), text.substr(std::string("expect:").size() + words.text(1).size() + 1));
    }
    const auto found = verbs_.find(words.text(0));
    if (found == verbs_.end()) {
      throw Wrong("usage: unknown step");
    }
    return found->second(words);
  }

 private:
  std::string expect(const std::string& status, const std::string& text) {
    try {
      step(text);
    } catch (const Wrong& error) {
      const std::string what = error.what();
      if (what.rfind(status + ": ", 0) == 0) {
        return what;
      }
      throw;
    }
    throw Wrong("wrong: it did not fail");
  }

  std::string join(uint64_t wait_ms, bool fresh) {
    gw_join_options options{};
    options.struct_size = sizeof(options);
    options.rank = options.world = -1;
    options.wait_ms = static_cast<int64_t>(wait_ms);
    options.flags = fresh ? GW_JOIN_FRESH : 0;
    must(gw_join(&options, &job_));
    return {};
  }

  void leave(bool in_order) {
    buckets_.forget();
    const gw_status status = gw_leave(std::exchange(job_, nullptr));
    if (in_order) {
      must(status);
    }
  }

  std::string past(const std::string& name) const {
    gw_progress progress{};
    progress.struct_size = sizeof(progress);
    const gw_status status = gw_previous_epoch(job_, name.c_str(), &progress);
    if (status == GW_ERR_NOT_FOUND) {
      return "none";
    }
    must(status);
    return "epoch=" + std::to_string(progress.epoch) + " lowest=" + std::to_string(progress.lowest) +
           " highest=" + std::to_string(progress.highest) + " rank=" + std::to_string(progress.highest_rank) +
           " unknown=" + std::to_string(progress.unknown_nodes);
  }

  void create(const std::string& name, const cluster::Layers& layers) { buckets_.create(job_, name, layers); }

  std::string repeat(uint64_t times, const std::function<void()>& body) {
    for (count_ = 0; count_ < times; ++count_) {
      body();
    }
    return {};
  }

  std::string time(const std::string& name, uint64_t times) {
    std::vector<double> all;
    repeat(times, [&] {
      const Clock::time_point start = Clock::now();
      buckets_.reduce(name);
      all.push_back(seconds_since(start));
    });
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    return "median_us=" + std::to_string(static_cast<uint64_t>(*middle * 1e6));
  }

  std::string pour(const std::string& name, uint64_t times, bool noise) {
    double size = 0;
    repeat(times, [&] { size = buckets_.pour(name, noise); });
    return "size=" + std::to_string(size);
  }

  std::map<std::string, std::function<std::string(const Words&)>> verbs_;
  bool lingers_ = false;
  uint64_t count_ = 0;
  gw_job* job_ = nullptr;
  cluster::Buckets buckets_;
};

// A line stays a line, whatever a name holds.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  Rank rank;
  for (int i = 1; i < argc; ++i) {
    const Clock::time_point start = Clock::now();
    const std::string shown = one_line(argv[i]);
    try {
      const std::string rest = one_line(rank.step(argv[i]));
      std::printf("ok %s %.3f%s%s\n", shown.c_str(), seconds_since(start), rest.empty() ? "" : " ",
                  rest.c_str());
      std::fflush(stdout);
    } catch (const std::exception& error) {
      std::printf("error %s %.3f %s\n", shown.c_str(), seconds_since(start), one_line(error.what()).c_str());
      std::fflush(stdout);
      if (rank.lingers()) {
        stay();
      }
      return 1;
    }
  }
  return 0;
}
