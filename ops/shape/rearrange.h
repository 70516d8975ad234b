// rearrange: reshape, transpose and repeat by named axes.
#pragma once

#include <sluice/core/tensor.h>

#include <initializer_list>
#include <string_view>
#include <utility>

namespace sluice {

/// Splits, reorders and merges axes as `pattern` says:
///
///   rearrange("b n (h d) -> b h n d", x, {{"h", 8}})   a name per axis; (…) is one dim made of several
///   rearrange("b ... c -> b (...) c", x)               ... stands for any number of axes
///   rearrange("b 1 d -> b d", x)                       1 is an axis of size 1
///   rearrange("b d -> b h d", x, {{"h", 4}})           a new name on the right repeats x
///
/// `sizes` gives the sizes that cannot be inferred; at most one axis of a group may be left out. Every axis on
/// the left must be on the right. A view wherever strides can express it. ShapeErrors repeat the pattern.
Tensor rearrange(std::string_view pattern, const Tensor& x,
                 std::initializer_list<std::pair<std::string_view, int64_t>> sizes = {});

}  // namespace sluice
