// mma and ldmatrix, by their definitions in the PTX manual.
#include <sluice/cuda/emulator/emulator_state.h>

#include <bit>
#include <cstring>

namespace sluice::cuda::emulator {

void mma(float* d, const uint32_t* a, const uint32_t* b) {
  struct Slot {
    float* d;
    const uint32_t *a, *b;
  } mine{d, a, b};
  collective("mma", ~0u, &mine, [](void* const* slots, unsigned all) {
    if (all != ~0u) bad("mma in a warp of fewer than 32 lanes");
    const auto number = [](uint32_t pair, int half) {
      return std::bit_cast<float>(half ? pair & 0xffff0000u : pair << 16);
    };
    float x[16][16], y[8][16];  // a by columns, b by columns
    for (int lane = 0; lane < 32; ++lane) {
      const Slot& s = *static_cast<const Slot*>(slots[lane]);
      const int group = lane / 4, pair = lane % 4 * 2;
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r) x[pair + r / 2 * 8 + half][group + r % 2 * 8] = number(s.a[r], half);
        for (int r = 0; r < 2; ++r) y[group][pair + r * 8 + half] = number(s.b[r], half);
      }
    }
    for (int col = 0; col < 8; ++col) {
      float sums[16] = {};
      for (int k = 0; k < 16; ++k)
        for (int row = 0; row < 16; ++row) sums[row] += x[k][row] * y[col][k];
      for (int row = 0; row < 16; ++row)
        static_cast<const Slot*>(slots[row % 8 * 4 + col / 2])->d[row / 8 * 2 + col % 2] += sums[row];
    }
  });
}

void ldmatrix(uint32_t* fragments, int matrices, bool transposed, const void* row) {
  struct Slot {
    uint32_t* fragments;
    const unsigned char* row;
    int matrices;
    bool transposed;
  } mine{fragments, static_cast<const unsigned char*>(row), matrices, transposed};
  constexpr const char* names[] = {"ldmatrix.x1",       "ldmatrix.x2",       "ldmatrix.x4",
                                   "ldmatrix.x1.trans", "ldmatrix.x2.trans", "ldmatrix.x4.trans"};
  if (lane() < 8 * matrices) {
    if (offset_of(row, 16, "ldmatrix reads") % 16) bad("ldmatrix: a row must begin at a multiple of 16 bytes");
    check_read(row, 16);
  }
  collective(names[matrices / 2 + 3 * transposed], ~0u, &mine, [](void* const* slots, unsigned all) {
    if (all != ~0u) bad("ldmatrix in a warp of fewer than 32 lanes");
    for (int lane = 0; lane < 32; ++lane) {
      const Slot& s = *static_cast<const Slot*>(slots[lane]);
      for (int i = 0; i < s.matrices; ++i) {
        const auto entry = [&](int r, int c) {
          uint16_t bits;
          std::memcpy(&bits, static_cast<const Slot*>(slots[8 * i + r])->row + 2 * c, 2);
          return uint32_t{bits};
        };
        const int line = lane / 4, pair = lane % 4 * 2;
        s.fragments[i] = s.transposed ? entry(pair, line) | entry(pair + 1, line) << 16
                                      : entry(line, pair) | entry(line, pair + 1) << 16;
      }
    }
  });
}

}  // namespace sluice::cuda::emulator
