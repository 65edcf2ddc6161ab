// Writes finished segments of many kinds of bucket, with what the library decodes from them, as one JSON
// document: `compress_oracle_dump FILE`. oracle.py checks it knowing only docs/wire-format.md.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "tests/compress/loopback_ring.h"

namespace gradwire::compress {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

struct Case {
  std::string name;
  uint32_t nodes = 1;
  uint32_t max_message_bytes = 70000;
  std::vector<std::pair<uint64_t, std::string>> layers;
  double density = 0.01;
  uint32_t warm_start_steps = 0;
  int steps = 1;
  ReduceOp op = ReduceOp::kSum;
  std::function<float(std::mt19937&)> draw;
};

class Dump {
 public:
  explicit Dump(std::ostream& out) : out_(out) { out_ << "["; }
  void finish() { out_ << "]\n"; }

  Status add(const Case& c) {
    BucketShape shape;
    shape.nodes = c.nodes;
    shape.max_message_bytes = c.max_message_bytes;
    std::vector<CodecSettings> settings;
    uint64_t elements = 0;
    for (const auto& [size, codec] : c.layers) {
      shape.layers.push_back({"l", size});
      settings.emplace_back();
      settings.back().codec = codec;
      settings.back().density = c.density;
      settings.back().warm_start_steps = c.warm_start_steps;
      elements += size;
    }
    std::vector<std::unique_ptr<BucketReducer>> nodes;
    for (uint32_t i = 0; i < c.nodes; ++i) {
      auto made = make_compressor(shape, settings);
      if (!made.ok()) {
        return made.status();
      }
      nodes.push_back(std::move(made).value());
    }
    LoopbackRing ring(std::move(nodes));
    std::vector<std::vector<float>> gradients(c.nodes, std::vector<float>(elements));
    std::vector<std::vector<float>> results(c.nodes, std::vector<float>(elements));
    std::vector<std::vector<const void*>> locals;
    std::vector<void*> starts;
    for (uint32_t i = 0; i < c.nodes; ++i) {
      locals.push_back({gradients[i].data()});
      starts.push_back(results[i].data());
    }
    std::string segments;
    std::mt19937 random(7);
    OperationSettings operation;
    operation.op = c.op;
    operation.ranks = 3;
    for (int step = 0; step < c.steps; ++step) {
      for (auto& gradient : gradients) {
        for (float& value : gradient) {
          value = c.draw(random);
        }
      }
      segments.clear();
      ring.observe([&segments](const Segment& s, std::span<const std::byte> bytes) {
        segments += (segments.empty() ? "" : ",\n") + std::string("{\"chunk\":") + std::to_string(s.chunk) +
                    ",\"first\":" + std::to_string(s.first_element) +
                    ",\"elements\":" + std::to_string(s.elements) +
                    ",\"max_bytes\":" + std::to_string(s.max_bytes) + ",\"bytes\":\"" + hex(bytes) + "\"}";
      });
      const auto done = ring.run(operation, locals, starts);
      if (!done.ok()) {
        return done.status();
      }
    }
    write(c, segments, results.back());
    return ok_status();
  }

 private:
  void write(const Case& c, const std::string& segments, const std::vector<float>& result) {
    out_ << (first_ ? "" : ",\n") << "{\"name\":\"" << c.name << "\",\"nodes\":" << c.nodes
         << ",\"max_message_bytes\":" << c.max_message_bytes
         << ",\"divide_by\":" << (c.op == ReduceOp::kAverage ? 3 : 1) << ",\"dense_below\":2048,\"layers\":[";
    first_ = false;
    for (size_t i = 0; i < c.layers.size(); ++i) {
      out_ << (i == 0 ? "" : ",") << "[" << c.layers[i].first << ",\"" << c.layers[i].second << "\"]";
    }
    out_ << "],\"segments\":[" << segments << "],\"result\":\"" << hex(std::as_bytes(std::span(result)))
         << "\"}";
  }

  std::ostream& out_;
  bool first_ = true;
};

float normal(std::mt19937& random) {
  return std::normal_distribution<float>()(random);
}

// A third of the elements about equally large: what a bitmap is for.
float crowded(std::mt19937& random) {
  return random() % 10 < 3 ? 1.0F + static_cast<float>(random() % 100) / 1000 : 0.0F;
}

// So many in a thousand over fourteen octaves: codes that are not worth packing.
std::function<float(std::mt19937&)> uneven(unsigned share) {
  return [share](std::mt19937& random) {
    return random() % 1000 < share ? std::ldexp(1.0F, -static_cast<int>(random() % 14)) : 0.0F;
  };
}

std::vector<Case> cases() {
  const auto zero = [](std::mt19937&) { return 0.0F; };
  const auto wide = [](std::mt19937& random) {
    return std::bit_cast<float>(static_cast<uint32_t>(random()) & 0xbf7fffff);
  };
  const auto huge = [](std::mt19937& random) { return (random() % 2 == 0 ? 1.0F : -1.0F) * 3.3e38F; };
  const auto tiny = [](std::mt19937& random) {
    return std::bit_cast<float>(static_cast<uint32_t>(random() % 0x02000000U));
  };
  const std::vector<std::pair<uint64_t, std::string>> mixed = {
      {3, "none"}, {2500, "laco"}, {0, "l8"},   {2047, "laco"},  {1, "none"},  {1, "none"},
      {7, "lads"}, {9001, "lads"}, {1, "laco"}, {66000, "laco"}, {4097, "l8"}, {5, "none"}};
  const auto E = ReduceOp::kAverage;
  const auto S = ReduceOp::kSum;
  return {
      {"sparse", 3, 70000, mixed, 0.01, 0, 3, E, normal},
      {"thin", 2, 70000, {{65537, "laco"}, {20000, "lads"}}, 0.001, 0, 2, S, normal},
      {"thick", 2, 130048, {{70000, "laco"}, {20000, "lads"}}, 0.2, 0, 4, S, normal},
      {"bitmap", 1, 130048, {{65537, "laco"}, {20000, "lads"}}, 0.5, 0, 1, S, crowded},
      {"uneven", 1, 130048, {{20000, "topk"}, {9000, "dropping"}}, 0.4, 0, 1, S, uneven(300)},
      {"few", 1, 130048, {{20000, "topk"}, {9000, "dropping"}}, 0.02, 0, 1, S, uneven(10)},
      {"dense stage", 2, 70000, {{66000, "laco"}, {9000, "lads"}, {9000, "laco"}}, 0.01, 5, 1, E, normal},
      {"zeros", 2, 70000, mixed, 0.01, 0, 1, S, zero},
      {"wide", 1, 70000, mixed, 0.05, 0, 2, S, wide},
      {"huge", 1, 70000, {{5000, "l8"}, {3000, "laco"}}, 0.01, 1, 1, S, huge},
      {"tiny", 1, 70000, {{5000, "l8"}, {3000, "laco"}}, 0.01, 0, 3, S, tiny},
      {"empty", 4, 70000, {}, 0.01, 0, 1, S, zero},
      {"raw", 3, 70000, {{40000, "none"}, {1, "none"}, {30000, "none"}, {100, "l8"}}, 0.01, 0, 1, E, normal},
  };
}

}  // namespace
}  // namespace gradwire::compress

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: compress_oracle_dump FILE\n";
    return 2;
  }
  std::ofstream file(argv[1]);
  gradwire::compress::Dump dump(file);
  for (const auto& c : gradwire::compress::cases()) {
    const auto status = dump.add(c);
    if (!status.ok()) {
      std::cerr << c.name << ": " << status.message() << "\n";
      return 1;
    }
  }
  dump.finish();
  return file.good() ? 0 : 1;
}
