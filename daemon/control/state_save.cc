#include "daemon/control/state_save.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

// What the engine shows in one turn: some 0.1 ms of its time.
constexpr uint64_t kTurnFloats = uint64_t{1} << 17;
constexpr size_t kTurnLayers = 512;
// How long a bucket may take to get another reducer, which is allocated already.
constexpr Nanoseconds kAgain = std::chrono::milliseconds(10);
constexpr unsigned kTries = 1000;

Status moved_on(const std::string& bucket) {
  return Status(
      Code::kUnavailable,
      "an operation of " + bucket_text(bucket) +
          " has run while its state was being saved: save when all operations have been waited for");
}

uint64_t section_bytes(const std::string& bucket) {
  return sizeof(compress::StateSection) + bucket.size();
}

// The engine's own words for a bucket that is not there have numbers only.
Status named(const Status& status, const std::string& bucket) {
  if (status.code() == Code::kAborted) {  // which tells trainers that their job has ended
    return {Code::kUnavailable, bucket_text(bucket) +
                                    " does not get its other plan, so its state cannot be "
                                    "saved: save again"};
  }
  return status.code() != Code::kNotFound
             ? status
             : Status(Code::kUnavailable,
                      bucket_text(bucket) +
                          " is gone from the engine, so its state cannot be saved: it is being destroyed, or "
                          "the job has ended; save before, or again afterwards");
}

}  // namespace

void StateSave::open(const Opened& done) {
  busy_ = true;
  if (!node_.residuals) {
    describe(done);
    return;
  }
  node_.residuals->when_home(source_.absent, if_wanted([done](StateSave& self, const Status& status) {
                               if (!status.ok()) {
                                 self.busy_ = false;
                                 done(status);
                                 return;
                               }
                               self.take_kept(done);
                             }));
}

void StateSave::take_kept(const Opened& done) {
  large_->sections = node_.residuals->copy(source_.identity);
  kept_ = large_->sections.size();
  uint64_t bytes = 0;
  for (const compress::StateSection& section : large_->sections) {
    bytes += section_bytes(section.bucket) + description_bytes(section.layers);
  }
  if (const Status charged = charge(bytes, large_->charges); !charged.ok()) {
    busy_ = false;
    done(charged);
    return;
  }
  describe(done);
}

Status StateSave::charge(uint64_t bytes, std::vector<QuotaLedger::Charge>& charges) {
  auto charge = node_.quotas->charge_bytes(
      source_.identity.uid, bytes, "what is known of the layers of a compression state", Holding::kSaving);
  GRADWIRE_RETURN_IF_ERROR(charge.status());
  charges.push_back(std::move(*charge));
  return ok_status();
}

void StateSave::describe(const Opened& done) {
  if (asked_ == source_.buckets.size()) {
    write(done);
    return;
  }
  const auto& [bucket, name] = source_.buckets[asked_];
  const bool begun = !live_.empty() && live_.back().bucket == bucket;
  const auto live = std::make_shared<Live>();
  live->bucket = bucket;
  live->name = name;
  const size_t first = begun ? live_.back().layers.size() : 0;
  const auto all = std::make_shared<bool>(false);
  node_.engine.look(
      source_.job, bucket,
      [live, first, all](const compress::BucketReducer& reducer) {
        live->reducer = &reducer;
        live->operations = reducer.stats().operations;
        live->floats = reducer.kept_floats();
        live->layers = reducer.describe_state(first, kTurnLayers);
        *all = live->layers.size() < kTurnLayers;
        return ok_status();
      },
      if_wanted([live, all, done](StateSave& self, const Status& status) {
        self.described(live, *all, status, done);
      }));
}

void StateSave::described(const std::shared_ptr<Live>& live, bool all, const Status& status,
                          const Opened& done) {
  const bool begun = !live_.empty() && live_.back().bucket == live->bucket;
  const bool replaced = begun && status.ok() && live_.back().reducer != live->reducer;
  if ((status.code() == Code::kAborted || replaced) && ++tries_ < kTries) {
    if (begun) {
      live_.pop_back();
    }
    again_.start(kAgain, if_wanted([done](StateSave& self) { self.describe(done); }));
    return;
  }
  if (!status.ok() || (begun && live_.back().operations != live->operations)) {
    busy_ = false;
    done(status.ok() ? moved_on(live->name) : named(status, live->name));
    return;
  }
  // Turn by turn, so that what exceeds the quota is not made first.
  const uint64_t bytes = description_bytes(live->layers) + (begun ? 0 : section_bytes(live->name));
  if (const Status charged = charge(bytes, begun ? live_.back().charges : live->charges); !charged.ok()) {
    busy_ = false;
    done(charged);
    return;
  }
  if (begun) {
    auto& layers = live_.back().layers;
    std::move(live->layers.begin(), live->layers.end(), std::back_inserter(layers));
  } else if (!live->layers.empty()) {
    live_.push_back(std::move(*live));
  }
  asked_ += all ? 1 : 0;
  describe(done);
}

void StateSave::write(const Opened& done) {
  for (Live& live : live_) {
    large_->sections.push_back({live.name, std::move(live.layers)});
    std::move(live.charges.begin(), live.charges.end(), std::back_inserter(large_->charges));
    live.layers.clear();
    live.charges.clear();
  }
  node_.workshop.run(
      [large = large_, origin = source_.origin] {
        large->writer = std::make_unique<compress::StateWriter>(origin, std::move(large->sections));
      },
      if_wanted([done](StateSave& self) {
        self.busy_ = false;
        self.window_.open(self.node_, self.source_.identity.uid, Holding::kSaving, done);
      }));
}

void StateSave::next(Reply<Part> done) {
  busy_ = true;
  filled_ = 0;
  done_ = std::move(done);
  go_on();
}

void StateSave::end(const Result<Part>& part) {
  busy_ = false;
  end_turn();
  const Reply<Part> done = std::exchange(done_, nullptr);
  done(part);
}

void StateSave::end_turn() {
  if (std::exchange(has_turn_, false)) {
    node_.copy_outs->end();
  }
}

void StateSave::cancel() {
  cancelled_ = true;
  if (!busy_ || waits_for_turn_) {
    discard();
  }
}

// Whatever comes back after cancel() ends here.
bool StateSave::gave_up() {
  if (cancelled_) {
    discard();
  }
  return cancelled_;
}

void StateSave::discard() {
  busy_ = false;
  done_ = nullptr;
  end_turn();
  source_.saving.reset();
  if (large_) {
    release_in(node_.workshop, std::exchange(large_, nullptr));
  }
}

void StateSave::go_on() {
  const compress::StateWriter& writer = *large_->writer;
  if (writer.done() || filled_ == StateWindow::kBytes) {
    end(Part{filled_, writer.done()});
    return;
  }
  if (const auto wanted = writer.wants()) {
    fetch(live_[*wanted - kept_]);
    return;
  }
  const auto written = std::make_shared<uint64_t>(0);
  node_.workshop.run(
      [self = shared_from_this(), written] {
        *written = self->large_->writer->fill(self->window_.bytes().subspan(self->filled_));
      },
      if_wanted([written](StateSave& self) {
        self.filled_ += *written;
        self.go_on();
      }));
}

// What is copied in one turn of the engine's needs no turn among the saves.
void StateSave::fetch(const Live& live) {
  if (live.floats <= kTurnFloats) {
    make_copy();
    return;
  }
  waits_for_turn_ = true;
  node_.copy_outs->ask([self = shared_from_this()] {
    self->waits_for_turn_ = false;
    self->has_turn_ = true;
    if (!self->gave_up()) {
      self->make_copy();
    }
  });
}

void StateSave::make_copy() {
  const Live& live = live_[*large_->writer->wants() - kept_];
  auto charge =
      node_.quotas->charge_bytes(source_.identity.uid, live.floats * sizeof(float),
                                 "a copy of the residuals of " + bucket_text(live.name), Holding::kSaving);
  if (!charge.ok()) {
    end(charge.status());
    return;
  }
  large_->copy = std::make_shared<Copy>();
  large_->copy->charge = std::move(*charge);
  node_.workshop.run(
      [copy = large_->copy, floats = live.floats] {
        try {
          copy->values.resize(floats);
        } catch (const std::bad_alloc&) {
          copy->values.clear();
        }
      },
      if_wanted([floats = live.floats, name = live.name](StateSave& self) {
        if (self.large_->copy->values.size() != floats) {
          self.end(Status(Code::kResourceExhausted,
                          "no memory for a copy of the residuals of " + bucket_text(name)));
          return;
        }
        self.copy(0);
      }));
}

void StateSave::copy(uint64_t from) {
  const Live& live = live_[*large_->writer->wants() - kept_];
  std::vector<float>& to = large_->copy->values;
  if (from == to.size()) {
    copied();
    return;
  }
  const uint64_t count = std::min<uint64_t>(kTurnFloats, to.size() - from);
  // The copy lives as long as the answer is due.
  node_.engine.look(
      source_.job, live.bucket,
      [to = &to, from, count, reducer_then = live.reducer, operations = live.operations,
       name = live.name](const compress::BucketReducer& reducer) {
        if (&reducer != reducer_then || reducer.stats().operations != operations ||
            reducer.kept_floats() != to->size()) {
          return moved_on(name);
        }
        reducer.copy_kept(from, std::span(*to).subspan(from, count));
        return ok_status();
      },
      if_wanted([next = from + count, name = live.name](StateSave& self, const Status& status) {
        if (!status.ok()) {
          self.end(named(status, name));
          return;
        }
        self.copy(next);
      }));
}

void StateSave::copied() {
  end_turn();
  auto copy = std::exchange(large_->copy, nullptr);
  const auto* const values = &copy->values;
  large_->writer->supply(std::shared_ptr<const std::vector<float>>(std::move(copy), values));
  go_on();
}

}  // namespace gradwire::control
