// A byte stream in pieces of any size is cut into the same documents as in one piece.
//
// Input: the limit (2 bytes), the size of the first piece and what each later one has more (a byte each),
// then the stream.
#include <string>
#include <vector>

#include "client/wire/framing.h"
#include "tests/fuzz/input.h"

namespace gradwire::wire {
namespace {

using fuzz::require;

struct Cut {
  std::vector<std::string> documents;
  bool failed = false;
};

// The definition: a length of 4 bytes, little-endian, 1 to the limit, and as many bytes.
Cut by_definition(std::string_view stream, size_t limit) {
  Cut cut;
  while (stream.size() >= kFrameHeader) {
    size_t length = 0;
    for (size_t i = 0; i < kFrameHeader; ++i) {
      length |= static_cast<size_t>(static_cast<uint8_t>(stream[i])) << (8 * i);
    }
    if (length == 0 || length > limit) {
      cut.failed = true;
      break;
    }
    if (stream.size() - kFrameHeader < length) {
      break;
    }
    cut.documents.emplace_back(stream.substr(kFrameHeader, length));
    stream.remove_prefix(kFrameHeader + length);
  }
  return cut;
}

Cut in_pieces(std::string_view stream, size_t limit, size_t piece, size_t more) {
  Cut cut;
  FrameReader reader(limit);
  while (!stream.empty() && !cut.failed) {
    const std::string_view part = stream.substr(0, piece);
    const std::string copy(part);  // reads beyond the piece are seen
    (void)reader.feed(copy.data(), copy.size());
    stream.remove_prefix(part.size());
    piece += more;
    while (auto document = reader.next()) {
      cut.documents.push_back(std::move(*document));
    }
    cut.failed = !reader.status().ok();
  }
  require(reader.feed("", 0).ok() != cut.failed, "a bad announcement is told as soon as it is there");
  require(reader.pending() <= limit + kFrameHeader || cut.failed, "no more waits than one document");
  require(!cut.failed || !reader.next(), "nothing comes after a failure");
  return cut;
}

}  // namespace
}  // namespace gradwire::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::wire;  // NOLINT(google-build-using-namespace)
  gradwire::fuzz::Input input(data, size);
  const size_t limit = 1 + input.number<uint16_t>();
  const size_t piece = 1 + input.number();
  const size_t more = input.number();
  const std::string_view stream(reinterpret_cast<const char*>(input.rest().data()), input.rest().size());
  const Cut expected = by_definition(stream, limit);
  for (const Cut& cut : {in_pieces(stream, limit, piece, more), in_pieces(stream, limit, SIZE_MAX / 2, 0)}) {
    gradwire::fuzz::require(cut.failed == expected.failed, "the same verdict");
    gradwire::fuzz::require(cut.documents == expected.documents, "the same documents");
  }
  std::string again;
  for (const std::string& document : expected.documents) {
    again += encode_frame(document);
  }
  gradwire::fuzz::require(stream.substr(0, again.size()) == again, "encoding is the inverse");
  return 0;
}
