// sign: a vote on the sign of every element (SignSGD with majority vote, Bernstein et al., ICML 2018). Every
// node votes with the sign of its own sum, at the mean magnitude of its block, and keeps what its own vote
// left of that sum (error feedback by node); the ring adds the counts as integers and the magnitudes as
// floats, and the owner turns them into one bit an element and one magnitude. What the majority decides
// differs from what the nodes voted, so nothing is conserved. docs/wire-format.md has the format.
#include <limits>
#include <vector>

#include "compress/codecs/dense.h"
#include "compress/codecs/magnitudes.h"
#include "compress/words.h"

namespace gradwire::compress {
namespace {

constexpr size_t kHeader = 5;  // voters, the sum of their magnitudes

constexpr uint32_t bits_of(uint32_t voters) {
  return static_cast<uint32_t>(std::bit_width(voters));
}

// Counts of `bits` bits each, one after another from the lowest bit of the first byte on.
uint32_t count_at(const std::byte* packed, size_t i, uint32_t bits) {
  const size_t bit = i * bits;
  uint32_t word = std::to_integer<uint32_t>(packed[bit / 8]);
  if (bit % 8 + bits > 8) {
    word |= std::to_integer<uint32_t>(packed[bit / 8 + 1]) << 8;
  }
  return (word >> (bit % 8)) & ((1U << bits) - 1);
}

size_t packed_bytes(size_t n, uint32_t bits) {
  return (n * bits + 7) / 8;
}

// Bytes from 0 on that are written from the lowest bit of the first one on.
class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : to_(to) {}
  void put(uint32_t value, uint32_t bits) {
    held_ |= value << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) {
      *to_++ = static_cast<std::byte>(held_);
    }
  }
  void end() {
    if (count_ > 0) {
      *to_ = static_cast<std::byte>(held_);
    }
  }

 private:
  std::byte* to_;
  uint32_t held_ = 0;
  uint32_t count_ = 0;
};

class SignCodec final : public BlockCodec {
 public:
  explicit SignCodec(const CodecUse& use)
      : nodes_(use.nodes), most_bits_(bits_of(use.nodes)), positive_(use.largest) {}

  size_t max_bytes(uint64_t elements) const override { return kHeader + packed_bytes(elements, most_bits_); }
  Result<BlockOutcome> hop(const BlockInput& input, std::byte* out, BlockRecord& record) override;
  size_t finish(std::byte* block, size_t bytes, uint32_t elements) const override;
  Status decode(ByteReader& bytes, uint32_t elements, float factor, float* result) override;
  uint64_t memory() const override { return positive_.size(); }

 private:
  struct Votes {
    uint32_t voters = 0;
    float magnitude = 0;
  };
  Status take_votes(ByteReader& bytes, uint32_t elements, Votes& votes);

  const uint32_t nodes_;
  const uint32_t most_bits_;  // of a count, with all nodes' votes
  std::vector<uint8_t> positive_;
};

Status corrupt(const char* what) {
  return {Code::kCorrupt, std::string("a sign block has ") + what + " that no sender writes"};
}

bool is_magnitude(float value) {
  return value > 0 && std::bit_cast<uint32_t>(value) < l8::kInfinity;
}

Status SignCodec::take_votes(ByteReader& bytes, uint32_t elements, Votes& votes) {
  const std::byte* const voters = bytes.take(1);
  if (voters == nullptr) {
    return truncated("a sign block");
  }
  votes.voters = std::to_integer<uint32_t>(*voters);
  if (votes.voters == 0) {
    std::fill_n(positive_.begin(), elements, uint8_t{0});
    return ok_status();
  }
  const uint32_t bits = bits_of(votes.voters);
  const std::byte* const rest = bytes.take(kHeader - 1 + packed_bytes(elements, bits));
  if (rest == nullptr) {
    return truncated("the votes of a sign block");
  }
  votes.magnitude = load<float>(rest);
  const std::byte* const packed = rest + 4;
  if (!is_magnitude(votes.magnitude) || !padding_is_zero(packed, size_t{elements} * bits)) {
    return corrupt("a magnitude or bits");
  }
  for (size_t i = 0; i < elements; ++i) {
    const uint32_t count = count_at(packed, i, bits);
    if (count > votes.voters) {
      return corrupt("more votes than voters");
    }
    positive_[i] = static_cast<uint8_t>(count);
  }
  return ok_status();
}

Result<BlockOutcome> SignCodec::hop(const BlockInput& input, std::byte* out, BlockRecord& record) {
  const uint32_t elements = input.elements;
  float* const sum = input.next;
  Votes votes;
  if (input.arrived != nullptr) {
    GRADWIRE_RETURN_IF_ERROR(take_votes(*input.arrived, elements, votes));
    if (votes.voters >= nodes_) {
      return Status(corrupt("more voters than nodes"));
    }
  } else {
    std::fill_n(positive_.begin(), elements, uint8_t{0});
  }
  start_sum(input);
  BlockOutcome outcome;
  outcome.not_finite = max_magnitude(sum, elements) >= l8::kInfinity;
  // A block of zeros does not vote: an element that nobody has a gradient for must not move.
  const float mean = outcome.not_finite ? 0.0F : mean_magnitude(sum, elements);
  if (mean > 0) {
    for (size_t i = 0; i < elements; ++i) {
      const bool negative = std::bit_cast<uint32_t>(sum[i]) >> 31 != 0;
      positive_[i] = static_cast<uint8_t>(positive_[i] + (negative ? 0 : 1));
      sum[i] -= negative ? -mean : mean;
    }
    votes.magnitude = std::min(votes.magnitude + mean, std::numeric_limits<float>::max());
    votes.voters += 1;
  }
  out[0] = static_cast<std::byte>(votes.voters);
  outcome.bytes = 1;
  if (votes.voters > 0) {
    const uint32_t bits = bits_of(votes.voters);
    store(out + 1, votes.magnitude);
    BitWriter writer(out + kHeader);
    for (size_t i = 0; i < elements; ++i) {
      writer.put(positive_[i], bits);
    }
    writer.end();
    outcome.bytes = kHeader + packed_bytes(elements, bits);
  }
  record.residual_sum = square_sum(sum, elements);
  record.sent = elements;
  return outcome;
}

// A tie goes to one side for even elements and to the other for odd ones, so that it favours none.
size_t SignCodec::finish(std::byte* block, size_t bytes, uint32_t elements) const {
  const auto voters = std::to_integer<uint32_t>(block[0]);
  if (voters == 0) {
    return bytes;
  }
  const uint32_t bits = bits_of(voters);
  block[0] = std::byte{1};
  const std::byte* const packed = block + kHeader;
  // Bit by bit behind what is read: a result bit lies at or below its count.
  for (size_t begin = 0; begin < elements; begin += 8) {
    uint32_t positive = 0;
    for (size_t i = begin; i < std::min<size_t>(begin + 8, elements); ++i) {
      const uint32_t twice = 2 * count_at(packed, i, bits);
      const bool up = twice > voters || (twice == voters && i % 2 == 0);
      positive |= (up ? 1U : 0U) << (i - begin);
    }
    block[kHeader + begin / 8] = static_cast<std::byte>(positive);
  }
  return kHeader + packed_bytes(elements, 1);
}

Status SignCodec::decode(ByteReader& bytes, uint32_t elements, float factor, float* result) {
  Votes votes;
  GRADWIRE_RETURN_IF_ERROR(take_votes(bytes, elements, votes));
  if (votes.voters > 1) {
    return corrupt("unfinished votes");
  }
  const float up = votes.magnitude * factor;
  for (size_t i = 0; i < elements; ++i) {
    result[i] = votes.voters == 0 ? 0.0F : (positive_[i] != 0 ? up : -up);
  }
  return ok_status();
}

}  // namespace

std::unique_ptr<BlockCodec> make_sign(const CodecUse& use) {
  return std::make_unique<SignCodec>(use);
}

}  // namespace gradwire::compress
