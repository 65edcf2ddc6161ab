// The compression state of one node as bytes that can be kept with a checkpoint: docs/state-format.md.
//
// Both classes go through the bytes once, in pieces of any size, and hold no more than one section's
// values (the writer) or what the state itself takes (the reader). Memory in, memory out; one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/reducer.h"

namespace gradwire::compress {

// Where a state comes from, for whoever looks at it: it may be read on any node.
struct StateOrigin {
  uint64_t epoch = 0;
  uint32_t nodes = 1;
  uint32_t node_index = 0;
  uint32_t world = 1;
};

struct StateSection {
  std::string bucket;  // where the layers were
  std::vector<LayerState> layers;
};

class StateWriter {
 public:
  // Layers may lack their values until wants() asks for them. A layer has a residual, a velocity, both, or
  // nothing but what is known of its controllers.
  StateWriter(const StateOrigin& origin, std::vector<StateSection> sections);

  uint64_t total_bytes() const { return total_; }
  // The section that cannot be written before supply(); nullopt: none at this moment.
  std::optional<size_t> wants() const;
  // What all layers of that section have their values in; large enough for them.
  void supply(const std::shared_ptr<const std::vector<float>>& values);
  // Writes what comes next and returns its bytes: less than out.size() where values are wanted or all is
  // written.
  size_t fill(std::span<std::byte> out);
  bool done() const { return next_ == Next::kNothing && at_ == head_.size(); }

 private:
  enum class Next { kSection, kLayer, kNothing };

  void produce();
  void begin_section(const StateSection& section);
  void begin_layer(const LayerState& layer);
  // Ends what is in head_ with its checksum.
  void seal();
  void note(uint32_t crc);

  std::vector<StateSection> sections_;
  uint64_t total_ = 0;
  Next next_ = Next::kSection;
  size_t section_ = 0, layer_ = 0;
  std::vector<std::byte> head_;  // to be written before values_
  size_t at_ = 0;                // of head_ written
  std::span<const std::byte> values_, then_;
  uint32_t values_crc_ = 0;
  uint32_t all_crc_ = 0;  // of the checksums
};

class StateReader {
 public:
  // Asked once, before anything is kept, whether so many bytes may be held; its failure is feed()'s.
  using Admit = std::function<Status(uint64_t bytes)>;
  explicit StateReader(Admit admit = nullptr);

  // Each byte is loaded once, so that `bytes` may be memory that somebody else can change meanwhile. A
  // failure is final: kCorrupt says what is damaged and where, kUnsupported names the version,
  // kResourceExhausted the memory.
  Status feed(std::span<const std::byte> bytes);
  // kCorrupt: more should have come.
  Status finish() const;

  const StateOrigin& origin() const { return origin_; }
  // After finish(): what was read. Every number has been checked, every value is finite.
  std::vector<StateSection> take() { return std::move(sections_); }

 private:
  enum class Stage { kHeader, kSection, kSectionName, kLayer, kLayerName, kValues, kValuesCrc, kEnd, kDone };

  Status step();
  Status header();
  Status section();
  Status section_name();
  Status layer();
  Status layer_name();
  Status values_crc();
  void expect_values();
  Status end();
  void expect(Stage stage, size_t bytes);
  void next_record();
  size_t take_values(std::span<const std::byte> bytes);
  Status damaged(const std::string& what) const;
  std::string where() const;
  LayerState& current() { return sections_.back().layers.back(); }

  Admit admit_;
  Status failed_;
  Stage stage_ = Stage::kHeader;
  std::vector<std::byte> part_;  // of the record that is coming
  size_t need_;                  // bytes of part_ before step()
  uint64_t offset_ = 0;          // of what feed() has taken
  uint64_t end_ = 0;             // where the state ends
  StateOrigin origin_;
  uint64_t sections_left_ = 0, layers_left_ = 0, section_layers_left_ = 0;
  std::vector<StateSection> sections_;
  size_t layer_bytes_ = 0;  // before a layer's name, in this version
  std::vector<float> values_;
  uint64_t values_bytes_ = 0;  // that have come
  uint32_t values_crc_ = 0, all_crc_ = 0;
};

}  // namespace gradwire::compress
