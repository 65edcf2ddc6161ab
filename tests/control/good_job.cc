#include "tests/control/good_job.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace gradwire::control::testing {
namespace {

Outcome failed(gw_status status) {
  return {status, gw_last_error(), 0};
}

// Every rank adds whether it has seen the stop file, so that all stop after the same operation.
Outcome train(int rank, int world, const std::string& socket, const std::string& rendezvous,
              const std::string& stop_file, const std::string& progress_file) {
  gw_job* job = nullptr;
  if (const gw_status status = join_job("good", rank, world, socket, rendezvous, &job, 30'000);
      status != GW_OK) {
    return failed(status);
  }
  const gw_layer layer = {"w", 5000};
  gw_bucket* bucket = nullptr;
  if (const gw_status status = gw_bucket_create(job, "b0", GW_FLOAT32, &layer, 1, 0, &bucket);
      status != GW_OK) {
    return failed(status);
  }
  for (int step = 1;; ++step) {
    auto* gradient = static_cast<float*>(gw_bucket_gradient(bucket));
    std::fill_n(gradient, 5000, static_cast<float>((rank + 1) * step % 1000));
    gradient[0] = access(stop_file.c_str(), F_OK) == 0 ? 1 : 0;
    gw_status status = gw_allreduce(bucket, GW_SUM);
    status = status == GW_OK ? gw_wait(bucket, 20'000, nullptr) : status;
    if (status != GW_OK) {
      return failed(status);
    }
    const auto* result = static_cast<const float*>(gw_bucket_result(bucket));
    float expected = 0;
    for (int each = 0; each < world; ++each) {
      expected += static_cast<float>((each + 1) * step % 1000);
    }
    for (int i = 1; i < 5000; ++i) {
      if (result[i] != expected) {
        return {GW_ERR_INTERNAL, "a wrong sum at step " + std::to_string(step), 0};
      }
    }
    if (rank == 0) {
      std::ofstream(progress_file, std::ios::trunc) << step << '\n';
    }
    if (result[0] > 0) {
      const gw_status left = gw_leave(job);
      return left == GW_OK ? Outcome{GW_OK, "", static_cast<double>(step)} : failed(left);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

GoodJob::GoodJob(const std::vector<std::string>& sockets, const std::string& rendezvous,
                 std::string stop_file)
    : stop_file_(std::move(stop_file)) {
  const int world = static_cast<int>(sockets.size());
  for (int rank = 0; rank < world; ++rank) {
    ranks_.emplace_back([&, rank] {
      return train(rank, world, sockets[static_cast<size_t>(rank)], rendezvous, stop_file_,
                   stop_file_ + ".progress");
    });
  }
}

GoodJob::~GoodJob() {
  std::error_code ignored;
  std::filesystem::remove(stop_file_, ignored);
}

bool GoodJob::advances() {
  const auto step = [this] {
    int value = 0;
    std::ifstream(stop_file_ + ".progress") >> value;
    return value;
  };
  const int before = step();
  return eventually([&] { return step() > before; });
}

std::string GoodJob::finish() {
  std::ofstream(stop_file_) << "stop\n";
  for (Trainer& rank : ranks_) {
    const auto outcome = rank.outcome();
    if (!outcome) {
      return "a rank did not come back";
    }
    if (outcome->status != GW_OK) {
      return outcome->message;
    }
  }
  return "";
}

}  // namespace gradwire::control::testing
