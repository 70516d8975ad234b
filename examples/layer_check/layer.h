// What layer_check knows about a layer: what --list prints, and how to build and run it.
#pragma once

#include "options.h"
#include "streaming.h"

#include <sluice/core/random.h>
#include <sluice/layers/nn/module.h>

#include <functional>
#include <memory>

namespace layer_check {

using sluice::NamedTensor;
using sluice::Tensor;

enum class Kind { floating, integer, boolean };
/// What --self-check fills an input with.
enum class Sample {
  normal,
  unit,         // in (0, 1)
  nonpositive,  // logarithms of decays
  index,        // integers below `below`
  ascending,    // document numbers
};

struct InputInfo {
  std::string name, shape;  // a ShapeFormula
  std::string meaning = {};
  Kind kind = Kind::floating;
  bool optional = false;
  std::string when = "True";  // with which options it exists
  Sample sample = Sample::normal;
  std::string below = "2";
};

/// A tensor of the state. The names and shapes that count are those of the built layer; these formulas describe
/// them, and --self-check compares the two.
struct ParameterInfo {
  /// "{i}" runs over `repeat`, "{j}" over `inner_repeat`: a number, or a list of objects, whose fields are
  /// item.<field>.
  std::string name, shape;
  std::string meaning = {};
  std::string when = "True";
  bool buffer = false;    // not trained: no gradient
  bool optional = false;  // a buffer that the options determine
  std::string repeat = {}, inner_repeat = {};  // of {i} and {j}
};

struct OutputInfo {
  std::string name, shape;  // the main output has no name
  std::string meaning = {};
  std::string when = "True";
};

/// The input tensors of a case; one that is not given is an undefined Tensor.
struct Inputs {
  std::map<std::string, Tensor> tensors;
  Tensor operator[](const std::string& name) const {
    const auto it = tensors.find(name);
    return it == tensors.end() ? Tensor() : it->second;
  }
};

/// The main output, called "", and any others. Those without history have no gradient.
using Results = std::vector<NamedTensor>;

/// A layer built from its options.
struct Instance {
  std::vector<NamedTensor> state;  // shares the layer's tensors
  std::function<void(const std::map<std::string, Tensor>&)> load;
  std::function<Results(const Inputs&)> run;
};
using Build = std::function<Instance(sluice::DType)>;

struct Layer {
  std::string name, family;
  std::string formula, source, notes = {};
  std::vector<std::pair<std::string, std::string>> derived = {};  // further names for formulas, in order
  std::vector<InputInfo> inputs = {};
  std::vector<ParameterInfo> parameters = {};
  std::vector<OutputInfo> outputs = {};
  /// Option sets for --self-check, beside the defaults.
  std::vector<Values> examples = {};
  /// Sizes for --self-check of names that no option has.
  std::map<std::string, int64_t> sizes = {};
  /// Reads the options; what it returns builds the layer.
  std::function<Build(Options&)> prepare;
};

/// The value of an expression over options, derived names and sizes of inputs.
Values names_of(const Layer& layer, const Values& options);

// -- ways to make `prepare` --------------------------------------------------------------------------------

inline Results results_of(Tensor y) { return {{"", std::move(y)}}; }
inline Results results_of(Results r) { return r; }

/// Where options keep the dtype of the parameters.
template <class O>
sluice::DType& dtype_in(O& o) {
  if constexpr (requires { o.dtype; }) return o.dtype;
  else if constexpr (requires { o.heads.dtype; }) return o.heads.dtype;
  else return dtype_in(o.layer);
}

/// For a module M with options O: run(m, inputs[, options]) → Tensor or Results.
template <class M, class O, class List, class Run>
std::function<Build(Options&)> module_layer(List list, Run run) {
  return [=](Options& v) -> Build {
    O o{};
    list(v, o);
    std::vector<int64_t> pieces;
    if constexpr (Streams<M>) v("stream", pieces, kStreamMeaning);
    return [=](sluice::DType dtype) {
      O typed = o;
      dtype_in(typed) = dtype;
      std::shared_ptr<M> m;
      sluice::Rng rng(1);
      if constexpr (requires { typed.module_options(); }) m = std::make_shared<M>(typed.module_options(), rng);
      else if constexpr (std::is_constructible_v<M, O, sluice::Rng&>) m = std::make_shared<M>(typed, rng);
      else m = std::make_shared<M>(typed);
      Instance made;
      made.state = sluice::state_dict(*m);
      made.load = [m](const std::map<std::string, Tensor>& state) { sluice::load_state(*m, state); };
      made.run = [=](const Inputs& in) -> Results {
        if constexpr (Streams<M>)
          if (!pieces.empty()) return run_stream(*m, in["x"], pieces);
        if constexpr (std::is_invocable_v<Run, const M&, const Inputs&, const O&>)
          return results_of(run(*m, in, typed));
        else
          return results_of(run(*m, in));
      };
      return made;
    };
  };
}

/// For a function without parameters of its own: run(options, inputs) → Tensor or Results.
template <class O, class List, class Run>
std::function<Build(Options&)> function_layer(List list, Run run) {
  return [=](Options& v) -> Build {
    O o{};
    list(v, o);
    return [=](sluice::DType) {
      Instance made;
      made.load = [](const std::map<std::string, Tensor>&) {};
      made.run = [=](const Inputs& in) { return results_of(run(o, in)); };
      return made;
    };
  };
}

/// For a function without options.
struct NoOptions {};
template <class Run>
std::function<Build(Options&)> plain_function(Run run) {
  return function_layer<NoOptions>([](Options&, NoOptions&) {}, [=](const NoOptions&,
                                                                    const Inputs& in) { return run(in); });
}

}  // namespace layer_check
