#include "daemon/planner/codec_trial.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "config/base/scramble.h"

namespace gradwire::planner {
namespace {

constexpr uint64_t kLarge = 65536;  // elements of a chunk: a sparse block
constexpr uint64_t kSmall = 4096;
constexpr uint32_t kMessageBytes = 4 * kLarge + 4096;  // one segment a chunk
constexpr int kSettling =
    24;  // operations until a sparse codec's threshold and residual are near their state
constexpr int kMeasured = 6;
constexpr double kNearDensity = 1.5;
constexpr double kMostWaiting = 16;

std::vector<float> random_gradient(uint64_t elements, uint64_t seed) {
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    const uint64_t bits = scramble(seed * elements + i);
    // The sum of four uniform numbers is near enough to a bell.
    float sum = 0;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>((bits >> (16 * part)) & 0xffff) - 32767.5F;
    }
    values[i] = sum * 1e-6F;
  }
  return values;
}

template <typename Call>
auto timed(const std::function<uint64_t()>& now_ns, double* ns, Call call) {
  const uint64_t before = now_ns();
  auto value = call();
  *ns = static_cast<double>(now_ns() - before);
  return value;
}

// Two nodes of a ring in one memory; the first is the one that is measured.
class Trial {
 public:
  Trial(std::array<std::unique_ptr<compress::BucketReducer>, 2> nodes, uint64_t elements,
        const std::function<uint64_t()>& now_ns)
      : nodes_(std::move(nodes)),
        now_ns_(now_ns),
        result_(elements),
        buffer_(kMessageBytes),
        arrived_(kMessageBytes),
        other_(kMessageBytes) {
    for (uint64_t i = 0; i < gradients_.size(); ++i) {
      gradients_[i] = random_gradient(elements, i + 1);
    }
  }

  struct Times {
    double first = 0, relay = 0, decode = 0, bytes = 0;
  };

  Result<Times> operation(size_t step) {
    compress::OperationSettings settings;
    settings.ranks = 2;
    for (const auto& node : nodes_) {
      GRADWIRE_RETURN_IF_ERROR(node->begin(settings));
    }
    const void* const mine = gradients_[step % gradients_.size()].data();
    const void* const theirs = gradients_[(step + 1) % gradients_.size()].data();
    const compress::Segment& out = nodes_[0]->geometry().segments(0).front();
    const compress::Segment& in = nodes_[0]->geometry().segments(1).front();
    Times times;
    const Result<compress::HopOutcome> sent = timed(now_ns_, &times.first, [&] {
      return nodes_[0]->hop(out, {}, std::span<const void* const>(&mine, 1), buffer_.data());
    });
    GRADWIRE_RETURN_IF_ERROR(sent.status());
    const auto owned = nodes_[1]->hop(out, {buffer_.data(), sent->bytes}, {&theirs, 1}, other_.data());
    GRADWIRE_RETURN_IF_ERROR(owned.status());
    const uint32_t whole = nodes_[1]->finish(out, other_.data(), owned->bytes);
    const auto came = nodes_[1]->hop(in, {}, {&theirs, 1}, arrived_.data());
    GRADWIRE_RETURN_IF_ERROR(came.status());
    const auto relayed = timed(now_ns_, &times.relay, [&] {
      return nodes_[0]->hop(in, {arrived_.data(), came->bytes}, {&mine, 1}, buffer_.data());
    });
    GRADWIRE_RETURN_IF_ERROR(relayed.status());
    const uint32_t finished = nodes_[0]->finish(in, buffer_.data(), relayed->bytes);
    GRADWIRE_RETURN_IF_ERROR(timed(now_ns_, &times.decode, [&] {
      return nodes_[0]->decode(out, {other_.data(), whole}, result_.data());
    }));
    times.bytes = (static_cast<double>(sent->bytes) + finished) / 2;
    for (const auto& node : nodes_) {
      node->commit();
    }
    return times;
  }

  double density() const { return nodes_[0]->stats().density; }
  const compress::Geometry& geometry() const { return nodes_[0]->geometry(); }

 private:
  std::array<std::unique_ptr<compress::BucketReducer>, 2> nodes_;
  const std::function<uint64_t()>& now_ns_;
  std::array<std::vector<float>, 4> gradients_;
  std::vector<float> result_;
  std::vector<std::byte> buffer_, arrived_, other_;
};

Result<Trial::Times> run(compress::CodecSettings settings, uint64_t chunk,
                         const std::function<uint64_t()>& now_ns, double* most_bytes) {
  settings.warm_start_steps = 0;
  settings.dense_below = 0;
  compress::BucketShape shape;
  shape.layers = {{"trial", 2 * chunk}};
  shape.nodes = 2;
  shape.max_message_bytes = kMessageBytes;
  std::array<std::unique_ptr<compress::BucketReducer>, 2> nodes;
  for (shape.node = 0; shape.node < 2; ++shape.node) {
    auto made = compress::make_compressor(shape, {&settings, 1});
    GRADWIRE_RETURN_IF_ERROR(made.status());
    nodes[shape.node] = std::move(*made);
  }
  Trial trial(std::move(nodes), 2 * chunk, now_ns);
  const compress::Segment& segment = trial.geometry().segments(0).front();
  *most_bytes = static_cast<double>(segment.max_bytes) / static_cast<double>(segment.elements);
  Trial::Times best;
  size_t step = 0;
  // What is not sparse needs no settling: the first operation only warms the caches.
  while (step < kSettling && (step == 0 || trial.density() < 1) &&
         (step < 2 || trial.density() > settings.density * kNearDensity)) {
    GRADWIRE_RETURN_IF_ERROR(trial.operation(step++).status());
  }
  for (int i = 0; i < kMeasured; ++i) {
    const Result<Trial::Times> times = trial.operation(step++);
    GRADWIRE_RETURN_IF_ERROR(times.status());
    // Whatever disturbs makes it slower, never faster.
    best.first = i == 0 ? times->first : std::min(best.first, times->first);
    best.relay = i == 0 ? times->relay : std::min(best.relay, times->relay);
    best.decode = i == 0 ? times->decode : std::min(best.decode, times->decode);
    best.bytes += times->bytes / kMeasured;
  }
  return best;
}

}  // namespace

Result<CodecCost> try_codec(const compress::CodecSettings& settings, const std::function<uint64_t()>& now_ns,
                            const std::function<uint64_t()>& cpu_ns) {
  const uint64_t since = now_ns();
  const uint64_t since_cpu = cpu_ns ? cpu_ns() : 0;
  double most_bytes = 0;
  const Result<Trial::Times> small = run(settings, kSmall, now_ns, &most_bytes);
  GRADWIRE_RETURN_IF_ERROR(small.status());
  const Result<Trial::Times> large = run(settings, kLarge, now_ns, &most_bytes);
  GRADWIRE_RETURN_IF_ERROR(large.status());
  const auto took = static_cast<double>(now_ns() - since);
  const auto worked = static_cast<double>(cpu_ns ? cpu_ns() - since_cpu : 0);
  const double waits = worked > 0 ? std::clamp(took / worked, 1.0, kMostWaiting) : 1.0;
  const auto line = [waits](double small_ns, double large_ns) {
    return line_through(static_cast<double>(kSmall), small_ns * waits, static_cast<double>(kLarge),
                        large_ns * waits);
  };
  CodecCost cost;
  cost.first = line(small->first, large->first);
  cost.relay = line(small->relay, large->relay);
  cost.decode = line(small->decode, large->decode);
  cost.bytes_per_element = large->bytes / static_cast<double>(kLarge);
  cost.most_bytes_per_element = most_bytes;
  return cost;
}

}  // namespace gradwire::planner
