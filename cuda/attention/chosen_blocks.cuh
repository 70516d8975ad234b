// Attention over chosen blocks of keys (AttentionMask::blocks) as a mask of rung 4, as in NSA (Yuan et al. 2025) and
// MoBA (Lu et al. 2025). A block has 64 keys or a multiple. A bit for each 64 keys says what a query sees. A tile has
// 64 or 128 keys, and so the part of a tile that a query sees is an interval, like those of causality and windows:
//
//   tile of 128   bits 00: nothing   01: [0, 64)   10: [64, 128)   11: [0, 128)
//
// Blocks of a kernel walk lists, made before, of those tiles of which one of their pairs is seen.
#pragma once

#include <sluice/cuda/attention/policies.h>

namespace sluice::cuda {

constexpr int kKeysOfBit = 64, kKeysOfWord = 32 * kKeysOfBit;

/// What [begin, end) of both have in common; begin may be beyond end.
SLUICE_FN KeySpan common(KeySpan a, KeySpan b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

struct ChosenBlocks : Window {
  const uint32_t* bits = nullptr;             // [slabs, words, rows]: bit i of word w for keys 64(32w + i) to …+ 63
  int words = 0, rows = 0, shift = 0;         // a row stands for 2^shift queries
  int slabs_of_batch = 0, heads_of_slab = 1;  // slabs_of_batch is 0 if all batches have the same bits
  // [slabs of lists, blocks, length]: how many tiles there are, and then the tiles. A tile is its first key (query),
  // plus 2 × the number of the query head among those that share keys, plus 1 if it has a pair that is not seen.
  const int* lists = nullptr;
  int blocks = 0, length = 0;
  int lists_of_batch = 0, heads_of_list = 1;
  const int* not_finite = nullptr;  // 0 if what the kernel multiplies with weights has no NaN and no infinity

  static constexpr int kMostMembers = kKeysOfBit / 2;
  static __device__ int first_of(int tile) { return tile & -kKeysOfBit; }
  static __device__ int member_of(int tile) { return tile % kKeysOfBit / 2; }
  static __device__ bool is_cut(int tile) { return tile & 1; }

  /// Where the bits of a query head begin, and where the list of a block of rows begins.
  __device__ int bits_of(int batch, int head) const {
    return (batch * slabs_of_batch + head / heads_of_slab) * words * rows;
  }
  __device__ int list_of(int batch, int head, int block) const {
    return ((batch * lists_of_batch + head / heads_of_list) * blocks + block) * length;
  }
  /// Bit 0 is that of `key`, a multiple of 64, and bit 1 that of the next 64 keys if they are of the same word.
  __device__ uint32_t chosen(int from, int query, int key) const {
    return bits[from + key / kKeysOfWord * rows + (query >> shift)] >> (key / kKeysOfBit % 32);
  }
  /// The keys that a query with these bits sees of the tile of `cols` keys from `first` on.
  template <int cols> static __device__ KeySpan seen(uint32_t chosen, int first) {
    static_assert(cols == kKeysOfBit || cols == 2 * kKeysOfBit);
    if (cols == kKeysOfBit) return {first, chosen & 1 ? first + cols : first};
    return {chosen & 1 ? first : first + kKeysOfBit, chosen & 2 ? first + cols : first + kKeysOfBit};
  }
};
/// True if blocks walk a list of tiles, and not all tiles of an interval.
template <class Mask> constexpr bool kListed = std::is_same_v<Mask, ChosenBlocks>;
/// True if no tile has to be searched for NaN: most of those of ChosenBlocks are cut, and one look before is cheaper.
template <class Mask> __device__ bool known_finite(const Mask& mask) {
  if constexpr (kListed<Mask>) return *mask.not_finite == 0;
  else return false;
}

}  // namespace sluice::cuda
