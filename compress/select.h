// Which elements of a sparse block are sent: those at or above a threshold, never by position.
#pragma once

#include <cstdint>
#include <span>

namespace gradwire::compress {

// The threshold as magnitude bits: at least 1, so that zeros are never sent; at most infinity's, so that
// elements that are not finite always are.
uint32_t threshold_bits(double threshold);

// Writes the positions of elements whose magnitude bits are at least `threshold`; returns how many.
uint32_t select(const float* values, uint32_t count, uint32_t threshold, uint32_t* positions);

// A higher threshold under which at most `cap` (>= 1) of `positions` remain. Equal magnitudes stay or go
// together. Where more than `cap` elements share the largest magnitude, those are kept all the same: dropping
// them would send nothing, again in every later step. `scratch` has room for as many words as positions.
uint32_t raised_threshold(const float* values, std::span<const uint32_t> positions, uint32_t cap,
                          uint32_t* scratch);

// Keeps the positions at or above `threshold`, in place; returns how many.
uint32_t select_again(const float* values, std::span<uint32_t> positions, uint32_t threshold);

}  // namespace gradwire::compress
