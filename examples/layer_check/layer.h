// What layer_check knows about a layer: what --list prints, and how to build and run it.
#pragma once

#include <sluice/core/text/json.h>
#include <sluice/core/text/options.h>
#include <sluice/core/number/random.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/shape/view.h>

#include <functional>
#include <map>
#include <memory>

namespace layer_check {

using sluice::Json;
using sluice::NamedTensor;
using sluice::OptionList;
using sluice::Tensor;
/// Options by their names.
using Values = std::map<std::string, Json>;

enum class Kind { floating, integer, boolean };
/// Which values a case may give an input.
enum class Range {
  any,
  unit,         // in [0, 1]
  nonpositive,  // logarithms of decays
  ascending,    // document numbers, which do not decrease
};

// What --list prints. Shapes and conditions are Python expressions over the options and the derived names, for the
// programs that read the listing: tests/layer_check/formulas.py compares them with the layers. Only inputs are checked
// by theirs here (inputs.cpp), as far as that needs no arithmetic; the layer checks the rest.

struct InputInfo {
  std::string name, shape;
  std::string meaning = {};
  Kind kind = Kind::floating;
  bool optional = false;
  std::string when = "True";  // with which options it exists
  Range range = Range::any;
};

/// A tensor of the state. The names and shapes that count are those of the built layer.
struct ParameterInfo {
  /// "{i}" runs over `repeat`, "{j}" over `inner_repeat`: a number, or a list of objects, whose fields are
  /// item.<field>.
  std::string name, shape;
  std::string meaning = {};
  std::string when = "True";
  bool buffer = false;                         // not trained: no gradient
  bool optional = false;                       // a buffer that the options determine
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
  sluice::DType dtype = sluice::f64;  // what the case is computed in
  Tensor operator[](const std::string& name) const {
    const auto it = tensors.find(name);
    return it == tensors.end() ? Tensor() : it->second;
  }
};

/// What a call brings besides x. Of a layer with a context, key_mask is the context's and query_mask that of x.
sluice::Pass pass_of(const Inputs& in);

/// Output for x [batch, n, ...] by step() over pieces of these lengths, n = Σ pieces.
template <class M>
Tensor run_stream(const M& m, const Tensor& x, const Inputs& in, const std::vector<int64_t>& pieces) {
  sluice::Stream stream;
  std::vector<Tensor> rows;
  for (const Tensor& piece : sluice::split(x, pieces, 1)) rows.push_back(sluice::step(m, piece, stream, pass_of(in)));
  return sluice::cat(rows, 1);
}

/// The main output, called "", and any others. Those without history have no gradient.
using Results = std::vector<NamedTensor>;

/// A layer built from its options.
struct Instance {
  std::vector<NamedTensor> state;  // shares the layer's tensors
  std::function<void(const std::map<std::string, Tensor>&)> load;
  std::function<Results(const Inputs&)> run;
  /// Takes the layer to a device; returns its state there. Empty for functions without parameters.
  std::function<std::vector<NamedTensor>(sluice::Device)> move = {};
};

/// Options with their defaults, to be filled in, and what then builds the layer. Options that only training sees are
/// not among them: a case gives all weights, and a comparison needs no randomness.
struct Draft {
  OptionList options;
  std::function<Instance(sluice::DType)> build;
};

/// An entry. What stands in the library's table of layers needs neither a draft nor samples.
struct Layer {
  std::string name, family;
  std::string formula, source, notes = {};
  std::vector<std::pair<std::string, std::string>> derived = {};  // further names for formulas, in order
  std::vector<InputInfo> inputs = {};
  std::vector<ParameterInfo> parameters = {};
  std::vector<OutputInfo> outputs = {};
  Values required = {};  // values of the options that are required; 8 unless given
  Values bare = {};      // further options of a first layer, where the defaults do not go together with those
  std::vector<Values> examples = {};  // option sets beside the defaults, which reach all that the layer can do
  bool streams = true;                // whether a layer of the table that streams has the option `stream`
  std::function<Draft()> draft = {};

  // How an entry is written. `what` is a name and a shape, "x [batch, n, dim]"; the main output has no name, and
  // an input whose name ends in ? is optional.
  Layer& note(std::string text) { return notes = std::move(text), *this; }
  Layer& derive(std::vector<std::pair<std::string, std::string>> names) { return derived = std::move(names), *this; }
  Layer& input(const std::string& what, std::string meaning = {}, std::string when = "True") {
    return input(Kind::floating, what, std::move(meaning), std::move(when));
  }
  Layer& input(Kind kind, const std::string& what, std::string meaning = {}, std::string when = "True");
  /// Of the last input.
  Layer& only(Range range) { return inputs.back().range = range, *this; }
  /// Of a layer that streams: not beside the option `stream`.
  Layer& key_mask(bool beside_streams = false);
  Layer& parameter(const std::string& what, std::string meaning = {}, std::string when = "True");
  /// weight and bias of a Linear called `path`; `bias` and `when` are conditions.
  Layer& dense(const std::string& path, const std::string& in, const std::string& out, const std::string& bias = "True",
               const std::string& meaning = {}, const std::string& when = "True");
  /// The parameters of a Norm called `path`, of width `dim`, whose kind is the option `kind`.
  Layer& norm(const std::string& path, const std::string& kind, const std::string& dim, const std::string& when = {},
              const std::string& bias = {});
  /// The parameters of another layer, under `prefix`; its {i} runs over `repeat`.
  Layer& parts(const Layer& of, const std::string& prefix, const std::string& repeat);
  Layer& output(const std::string& what, std::string meaning = {}, std::string when = "True");
  Layer& require(Values values) { return required = std::move(values), *this; }
  Layer& samples(std::vector<Values> sets) { return examples = std::move(sets), *this; }
  /// What several entries have in common: f(*this).
  template <class F> Layer& also(F f) { return f(*this), *this; }
  /// A function with options O, run(options, inputs), or without options, run(inputs).
  template <class O, class Run> Layer& runs(Run run);
  template <class Run> Layer& runs(Run run);
};

/// A new entry at the end of the list.
Layer& add(std::vector<Layer>& all, const std::string& name, const std::string& family, const std::string& formula,
           const std::string& source = "");

/// What a layer is made of when nothing else is said of it: the required options, and the bare ones.
Values bare_options(const Layer& layer);
/// ValueError for more numbers than this machine's memory holds, before anything is allocated.
void check_memory(const std::string& what, double numbers);
/// Option sets that together reach all that the layer can do; the first is bare_options().
std::vector<Values> samples_of(const Layer& layer);
Json object(const Values& values);

// -- ways to make a draft ----------------------------------------------------------------------------------

inline Results results_of(Tensor y) { return {{"", std::move(y)}}; }
inline Results results_of(Results r) { return r; }

/// Those that a case can have, followed by `more`.
inline OptionList case_options(OptionList list, const OptionList& more = {}) {
  std::erase_if(list.all, [](const sluice::Option& option) { return option.training; });
  list.all.insert(list.all.end(), more.all.begin(), more.all.end());
  return list;
}

/// Where options keep the dtype of the parameters.
template <class O> sluice::DType& dtype_in(O& o) {
  if constexpr (requires { o.dtype; }) return o.dtype;
  else if constexpr (requires { o.heads.dtype; }) return o.heads.dtype;
  else return dtype_in(o.layer);
}

struct StreamOption {
  std::vector<int64_t> pieces;
  static void describe(auto& o, auto& f) {
    f("stream", o.pieces, sluice::at_least(1),
      "not empty: the output is computed by step() over consecutive pieces of these lengths, without gradients");
  }
};

/// For a module M with options O: run(m, inputs[, options]) → Tensor or Results. `streams`: it has the option.
template <class M, class O, class Run> std::function<Draft()> module_layer(Run run, bool streams = false) {
  return [=] {
    auto o = std::make_shared<O>();
    auto stream = std::make_shared<StreamOption>();
    const OptionList more = streams ? sluice::options_of(*stream) : OptionList();
    Draft draft{.options = case_options(sluice::options_of(*o), more), .build = {}};
    draft.build = [=](sluice::DType dtype) {
      dtype_in(*o) = dtype;
      std::shared_ptr<M> m;
      sluice::Rng rng(1);
      if constexpr (requires { o->module_options(); }) m = std::make_shared<M>(o->module_options(), rng);
      else m = std::make_shared<M>(sluice::detail::build<M>(*o, rng));
      Instance made;
      made.state = sluice::state_dict(*m);
      made.load = [m](const std::map<std::string, Tensor>& state) { sluice::load_state(*m, state); };
      made.move = [m](sluice::Device device) {
        sluice::to(*m, device);
        return sluice::state_dict(*m);
      };
      made.run = [=](const Inputs& in) -> Results {
        if constexpr (sluice::TakesPass<M>)
          if (!stream->pieces.empty()) return results_of(run_stream(*m, in["x"], in, stream->pieces));
        if constexpr (std::is_invocable_v<Run, const M&, const Inputs&, const O&>) return results_of(run(*m, in, *o));
        else return results_of(run(*m, in));
      };
      return made;
    };
    return draft;
  };
}

/// For a function without parameters of its own: run(options, inputs) → Tensor or Results.
template <class O, class Run> std::function<Draft()> function_layer(Run run) {
  return [=] {
    auto o = std::make_shared<O>();
    Draft draft{.options = case_options(sluice::options_of(*o)), .build = {}};
    draft.build = [=](sluice::DType) {
      Instance made;
      made.load = [](const std::map<std::string, Tensor>&) {};
      made.run = [=](const Inputs& in) { return results_of(run(*o, in)); };
      return made;
    };
    return draft;
  };
}

struct NoOptions {
  static void describe(auto&, auto&) {}
};

template <class O, class Run> Layer& Layer::runs(Run run) { return draft = function_layer<O>(std::move(run)), *this; }
template <class Run> Layer& Layer::runs(Run run) {
  return runs<NoOptions>([=](const NoOptions&, const Inputs& in) { return run(in); });
}

}  // namespace layer_check
