#include "daemon/control/state_save.h"

#include <algorithm>
#include <new>

#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

// What the engine shows in one turn: some 0.1 ms of its time.
constexpr uint64_t kTurnFloats = uint64_t{1} << 17;
constexpr size_t kTurnLayers = 512;

Status moved_on(const std::string& bucket) {
  return Status(
      Code::kUnavailable,
      "an operation of " + bucket_text(bucket) +
          " has run while its state was being saved: save when all operations have been waited for");
}

}  // namespace

void StateSave::open(const Reply<std::shared_ptr<SharedMemory>>& done) {
  describe(done);
}

void StateSave::describe(const Reply<std::shared_ptr<SharedMemory>>& done) {
  if (asked_ == source_.buckets.size()) {
    opened(done);
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
        live->operations = reducer.stats().operations;
        live->elements = reducer.residual().size();
        live->layers = reducer.describe_state(first, kTurnLayers);
        *all = live->layers.size() < kTurnLayers;
        return ok_status();
      },
      [self = shared_from_this(), live, all, done](const Status& status) {
        self->described(live, *all, status, done);
      });
}

void StateSave::described(const std::shared_ptr<Live>& live, bool all, const Status& status,
                          const Reply<std::shared_ptr<SharedMemory>>& done) {
  if (!status.ok() && status.code() != Code::kNotFound) {
    done(status);
    return;
  }
  const bool begun = !live_.empty() && live_.back().bucket == live->bucket;
  if (begun && (!status.ok() || live_.back().operations != live->operations)) {
    done(moved_on(live->name));
    return;
  }
  if (begun) {
    auto& layers = live_.back().layers;
    std::move(live->layers.begin(), live->layers.end(), std::back_inserter(layers));
  } else if (status.ok() && !live->layers.empty()) {
    live_.push_back(std::move(*live));
  }
  asked_ += all || !status.ok() ? 1 : 0;
  describe(done);
}

void StateSave::opened(const Reply<std::shared_ptr<SharedMemory>>& done) {
  std::vector<compress::StateSection> sections = std::move(source_.kept);
  kept_ = sections.size();
  for (Live& live : live_) {
    sections.push_back({live.name, std::move(live.layers)});
    live.layers.clear();
  }
  writer_ = std::make_unique<compress::StateWriter>(source_.origin, std::move(sections));
  window_.open(node_, source_.uid, done);
}

void StateSave::next(Reply<Part> done) {
  filled_ = 0;
  done_ = std::move(done);
  go_on();
}

void StateSave::end(const Result<Part>& part) {
  if (!part.ok() || part->last) {
    copy_charge_.reset();
  }
  const Reply<Part> done = std::exchange(done_, nullptr);
  done(part);
}

void StateSave::go_on() {
  if (writer_->done() || filled_ == StateWindow::kBytes) {
    end(Part{filled_, writer_->done()});
    return;
  }
  if (const auto wanted = writer_->wants()) {
    fetch(live_[*wanted - kept_]);
    return;
  }
  const auto written = std::make_shared<uint64_t>(0);
  node_.workshop.run(
      [self = shared_from_this(), written] {
        *written = self->writer_->fill(self->window_.bytes().subspan(self->filled_));
      },
      [self = shared_from_this(), written] {
        self->filled_ += *written;
        self->go_on();
      });
}

void StateSave::fetch(const Live& live) {
  copy_charge_.reset();  // of the bucket before, which is written
  auto charge = node_.quotas->charge_bytes(source_.uid, live.elements * sizeof(float),
                                           "a copy of the residuals of " + bucket_text(live.name));
  if (!charge.ok()) {
    end(charge.status());
    return;
  }
  copy_charge_ = std::move(*charge);
  const auto room = std::make_shared<std::shared_ptr<std::vector<float>>>();
  node_.workshop.run(
      [room, elements = live.elements] {
        try {
          *room = std::make_shared<std::vector<float>>(elements);
        } catch (const std::bad_alloc&) {
          room->reset();
        }
      },
      [self = shared_from_this(), room, name = live.name] {
        if (*room == nullptr) {
          self->end(Status(Code::kResourceExhausted,
                           "no memory for a copy of the residuals of " + bucket_text(name)));
          return;
        }
        self->copy(std::move(*room), 0);
      });
}

void StateSave::copy(std::shared_ptr<std::vector<float>> to, uint64_t from) {
  const size_t index = *writer_->wants();
  const Live& live = live_[index - kept_];
  if (from == to->size()) {
    writer_->supply(std::move(to));
    go_on();
    return;
  }
  const uint64_t count = std::min<uint64_t>(kTurnFloats, to->size() - from);
  node_.engine.look(
      source_.job, live.bucket,
      [to, from, count, operations = live.operations,
       name = live.name](const compress::BucketReducer& reducer) {
        const auto residual = reducer.residual();
        if (reducer.stats().operations != operations || residual.size() != to->size()) {
          return moved_on(name);
        }
        std::copy_n(residual.data() + from, count, to->data() + from);
        return ok_status();
      },
      [self = shared_from_this(), to, from, count, name = live.name](const Status& status) {
        if (!status.ok()) {
          self->end(status.code() == Code::kNotFound ? moved_on(name) : status);
          return;
        }
        self->copy(to, from + count);
      });
}

}  // namespace gradwire::control
