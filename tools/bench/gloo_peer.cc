// A peer for comparison: Gloo's ring allreduce of float32, one process a rank.
//   gloo_peer RANK WORLD FOLDER ADDRESS BYTES ITERATIONS WARMUP
// The ranks meet through files in FOLDER (empty at the start); ADDRESS is this rank's own. Measures as
// `gradwire bench` does: from a barrier to the completion on the slowest rank; rank 0 prints JSON.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Context = std::shared_ptr<gloo::rendezvous::Context>;

template <typename T>
void ring_allreduce(const Context& context, std::vector<T>& in, std::vector<T>& out,
                    void (*reduce)(void*, const void*, const void*, size_t)) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setInput(in.data(), in.size());
  options.setOutput(out.data(), out.size());
  options.setReduceFunction(reduce);
  gloo::allreduce(options);
}

int measure(int rank, int world, const std::string& folder, const std::string& address, size_t bytes,
            size_t iterations, size_t warmup) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(folder);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, world);
  context->connectFullMesh(store, device);

  std::vector<float> in(bytes / sizeof(float), 1.0f + static_cast<float>(rank));
  std::vector<float> out(in.size());
  std::vector<double> seconds;
  for (size_t i = 0; i < iterations + warmup; ++i) {
    gloo::BarrierOptions barrier(context);
    gloo::barrier(barrier);
    const Clock::time_point start = Clock::now();
    ring_allreduce(context, in, out, &gloo::sum<float>);
    if (i >= warmup) {
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  const float want = static_cast<float>(world) * static_cast<float>(world + 1) / 2;
  if (std::any_of(out.begin(), out.end(), [want](float value) { return value != want; })) {
    std::fprintf(stderr, "gloo_peer: rank %d: the result is wrong\n", rank);
    return 1;
  }
  std::vector<double> slowest(seconds.size());
  ring_allreduce(context, seconds, slowest, &gloo::max<double>);
  std::sort(slowest.begin(), slowest.end());
  if (rank == 0) {
    std::printf(
        "{\"world\": %d, \"bytes\": %zu, \"iterations\": %zu, \"median_seconds\": %.9f, "
        "\"min_seconds\": %.9f}\n",
        world, bytes, iterations, slowest[(slowest.size() + 1) / 2 - 1], slowest.front());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: gloo_peer RANK WORLD FOLDER ADDRESS BYTES ITERATIONS WARMUP\n");
    return 2;
  }
  const auto number = [&](int index) { return std::strtoull(argv[index], nullptr, 10); };
  try {
    return measure(static_cast<int>(number(1)), static_cast<int>(number(2)), argv[3], argv[4], number(5),
                   std::max<size_t>(number(6), 1), number(7));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_peer: rank %s: %s\n", argv[1], error.what());
    return 1;
  }
}
