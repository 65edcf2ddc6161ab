#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr std::string_view kSeeds[] = {
    "clocks:\n  peer_timeout: 3s\n  operation_timeout: 1.5min\nlog: {level: debug}\n",
    "node: {name: \"w 1\", runtime_dir: /tmp/x, socket_mode: 0600}\npeers: {listen: '::', port: 1}\n",
    "transport:\n  ucx: {A: 1, B_2: \"x y\"}\n  segment: 256KiB\nengine: {spin: 50us, workers: 3}\n",
    "compression:\n  codec: laco\n  density: 1e-3\n  rules:\n    - match: '*.bias'\n      codec: none\n    - "
    "{match: e?, "
    "norm: current, dense_below: 7}\n",
    "a: &x [1, {b: *x}]\n--- |\n  text\n...\n? [k]\n: !!str v\n",
    "compression.rules=[{match: '*', codec: l8, density: 0.5}]",
    R"({"version":1,"defaults":{"codec":"l8","density":0.01,"edge_density_factor":4.0,"dense_below":2048,)"
    R"("density_cap":4.0,"warm_start_steps":100,"norm":"previous","rounding":"nearest",)"
    R"("steps_per_octave":"8","error_feedback":"on","residuals":"fp32","threshold_scope":"layer",)"
    R"("norm_of":"sum","sparse_rows":"off","momentum":0,"clip_norm":0,"warm_start":"stages"},)"
    R"("rules":[{"match":"*","codec":"none"}]})",
};
constexpr std::string_view kTokens[] = {
    ": ",   "\n",           "- ",   "{",     "}",     "[",    "]",     ",",     "\"",          "'",  "#",
    "&a",   "*a",           "!t ",  "|\n",   ">\n",   "? ",   "---\n", "...\n", "%YAML 1.2\n", "\t", "~",
    "null", "\xEF\xBB\xBF", "\xFF", "1e999", "\\x00", "<<: ", "0x",    "s",     "KiB",         "-",  "."};

std::string mutate(std::string text, std::mt19937& random) {
  for (size_t changes = 1 + random() % 6; changes > 0; --changes) {
    const size_t at = random() % (text.size() + 1);
    switch (random() % 6) {
      case 0:
        text.insert(at, kTokens[random() % std::size(kTokens)]);
        break;
      case 1:
        text.insert(at, 1, static_cast<char>(random()));
        break;
      case 2:
        text.erase(at, 1 + random() % 8);
        break;
      case 3: {  // a piece of another seed
        const std::string_view other = kSeeds[random() % std::size(kSeeds)];
        text.insert(at, other.substr(random() % other.size(), random() % 64));
        break;
      }
      case 4:  // a piece of itself, again
        text.insert(at, text.substr(random() % (text.size() + 1), random() % 64));
        break;
      default:
        if (at < text.size()) {
          text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
        }
    }
  }
  return text;
}

void run(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

TEST(ConfigFuzz, SeedsAndTheirCutsAreHandled) {
  for (const std::string_view seed : kSeeds) {
    for (size_t length = 0; length <= seed.size(); ++length) {
      run(std::string(seed.substr(0, length)));
    }
  }
}

TEST(ConfigFuzz, MutatedInputsNeverLeakAnExceptionAndDumpsReadBackEqual) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    run(mutate(std::string(kSeeds[random() % std::size(kSeeds)]), random));
  }
}

}  // namespace
