// Small formulas over option names, which --list prints and --self-check evaluates: a subset of Python, so that
// a script can pass them to eval() with the options as variables.
//
//   e if c else e · or · and · not · == != < <= > >= · in (…) · + - · * / // % · - · min max int len · 'text' · numbers
//   · True False None
#pragma once

#include "value.h"

#include <sluice/core/shape.h>

#include <string_view>

namespace layer_check {

/// ValueError naming the formula for text that is none and for unknown names.
Json evaluate(std::string_view formula, const Values& names);
bool is_true(const Json& v);
int64_t evaluate_size(std::string_view formula, const Values& names);

/// The shape of a tensor as a formula: "[batch, n, 2*dim]"; "[..., dim]" begins with any sizes;
/// "broadcast [batch, heads, m, n]" is any shape that broadcasts to it.
struct ShapeFormula {
  bool broadcast = false, ellipsis = false;
  std::vector<std::string> sizes;
  explicit ShapeFormula(std::string_view text);

  /// Gives names that stand alone and have no value yet (batch, n) the size they have in `shape`; false when the
  /// ranks cannot fit.
  bool bind(const sluice::Shape& shape, Values& names) const;
  bool fits(const sluice::Shape& shape, const Values& names) const;
  /// The sizes; an ellipsis becomes [2, 3].
  sluice::Shape example(const Values& names) const;
  /// "[batch, n, 2*dim] = [batch, n, 16]", with what is known filled in.
  std::string explain(std::string_view text, const Values& names) const;
};

}  // namespace layer_check
