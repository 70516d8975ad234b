// Feature maps, linear attention and scans as functions of given queries, keys and values.
#include "linear_forms.h"
#include "linear_options.h"
#include "registry.h"

#include <sluice/layers/linear_time/gla.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/scan/linear_scan.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

std::string feature_count(const std::string& p, const std::string& d) {
  const std::string k = p + "kind", f = p + "features", g = p + "degree";
  return "(" + f + " or " + d + ") if " + k + " in ('relu', 't2r', 'mlp', 'favor') else " + g + "*" + d + " if " + k +
         " == 'poly_elem' else (" + d + " + 1)**" + g + " if " + k + " == 'poly_kernel' else 2*(" + f + " or " + d +
         ") + int(" + p + "smoothing > 0) if " + k + " == 'fourier' else 2*" + d + " if " + k +
             " == 'hedgehog' else " + d;
}

std::vector<ParameterInfo> feature_map_parameters(const std::string& path, const std::string& p, const std::string& d,
                                                  const std::string& when) {
  const std::string at = path.empty() ? "" : path + ".", k = p + "kind", f = "(" + p + "features or " + d + ")",
                    hidden = "(" + p + "hidden or 2*" + d + ")", bias = p + "bias", heads = p + "heads";
  std::vector<ParameterInfo> all;
  auto add = [&](const std::string& name, const std::string& in, const std::string& out, const std::string& condition) {
    const bool vector = in.empty();
    all.push_back({.name = at + name, .shape = vector ? "[" + out + "]" : "[" + in + ", " + out + "]",
                   .when = when + " and " + condition + " and " + heads + " == 0"});
    all.push_back({.name = at + name, .shape = "[" + heads + ", " + (vector ? "1" : in) + ", " + out + "]",
                   .when = when + " and " + condition + " and " + heads + " > 0"});
  };
  add("weight", d, f, "(" + k + " == 't2r' or " + k + " == 'relu' and " + p + "features > 0)");
  add("weight", d, hidden, k + " == 'mlp'");
  add("weight", d, d, k + " == 'hedgehog'");
  add("bias", "", f, k + " == 't2r' and " + bias);
  add("bias", "", hidden, k + " == 'mlp' and " + bias);
  add("bias", "", d, k + " == 'hedgehog' and " + bias);
  add("weight2", hidden, f, k + " == 'mlp'");
  add("bias2", "", f, k + " == 'mlp' and " + bias);
  all.push_back({.name = at + "omega", .shape = "[" + d + ", " + f + "]",
                 .meaning = "random directions: favor N(0, 1), fourier N(0, 1/sigma^2)",
                 .when = when + " and " + k + " in ('favor', 'fourier')", .buffer = true});
  return all;
}

namespace {

enum class Form { chunked, quadratic, recurrent };
constexpr const char* choices(Form) { return "chunked quadratic recurrent"; }

struct LinearCall {
  Form form = Form::chunked;
  LinearAttentionForm options;
  bool use_rope = false;
  RopeOptions rope;
  bool state = false;

  static void describe(auto& o, auto& f) {
    f("form", o.form, "which of the equal forms: scan in chunks (or by associativity), the n x n matrix, or one token at "
                      "a time (causal only)");
    f("direction", o.options.direction, kLinearDirectionMeaning);
    f("normalize", o.options.normalize, "sum: divide by phi(q) Z + eps");
    f("eps", o.options.eps, at_least(0), "of the denominator");
    f("scale", o.options.scale, any_number(), "of phi(q)");
    f("chunk", o.options.chunk, at_least(1), "steps at once; changes rounding only");
    f("use_rope", o.use_rope, "rotate phi(q) and phi(k) in the numerator");
    f.nested("rope_", o.rope);
    f("state", o.state, "recurrent: write the state after the last token");
  }
};

struct ScanCall {
  LinearScanOptions options;
  bool channels = false, chunks_only = false;
  static void describe(auto& o, auto& f) {
    f("channels", o.channels, "log_decay is [batch, heads, n, f] instead of [batch, heads, n]");
    f("chunk", o.options.chunk, at_least(1), "steps at once; changes rounding only, unless chunks_only");
    f("chunks_only", o.chunks_only, "o_t = q_t S at the start of the chunk of t");
    f("reverse", o.options.reverse, "from the last step to the first");
    f("decay_on_values", o.options.decay_on_values, "the channels of log_decay are those of v");
  }
};
struct GlaCase : LinearAttentionForm {
  static void describe(auto& o, auto& f) {
    f("scale", o.scale, any_number(), "of q");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
  }
};

Results run_linear(const LinearCall& call, const Inputs& in) {
  LinearAttentionForm form = call.options;
  form.log_decay = in["log_decay"], form.key_mask = in["key_mask"];
  if (call.use_rope) form.rope = call.rope;
  const Tensor q = in["phi_q"], k = in["phi_k"], v = in["v"];
  if (call.form == Form::chunked) return {{"", linear_attention(q, k, v, form)}};
  if (call.form == Form::quadratic) return {{"", quadratic_attention(q, k, v, form)}};
  const Recurrent r = recurrent_attention(q, k, v, form);
  Results results{{"", r.y}};
  if (call.state) results.push_back({"state", r.state});
  return results;
}

/// linear_scan(); with chunks_only less what a step's own chunk adds.
Tensor run_scan(const ScanCall& call, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay) {
  const Tensor y = linear_scan(q, k, v, log_decay, call.options);
  if (!call.chunks_only) return y;
  Shape shape{k.dim(0), k.dim(1), k.dim(2)};
  if (call.channels) shape.push_back(call.options.decay_on_values ? v.dim(3) : k.dim(3));
  const Tensor g = log_decay.defined() ? expand(log_decay, shape) : log_decay;
  std::vector<Tensor> own;
  for (int64_t first = 0; first < k.dim(2); first += call.options.chunk) {
    const auto chunk = [&](const Tensor& x) {
      return x.defined() ? narrow(x, 2, first, std::min(call.options.chunk, k.dim(2) - first)) : x;
    };
    own.push_back(linear_scan(chunk(q), chunk(k), chunk(v), chunk(g), call.options));
  }
  return own.empty() ? y : y - cat(own, 2);
}

std::vector<InputInfo> scan_inputs(const std::string& q, const std::string& k) {
  return {{.name = q, .shape = "[batch, heads, n, f]"}, {.name = k, .shape = "[batch, heads, n, f]"},
          {.name = "v", .shape = "[batch, heads, n, dv]"}};
}

void add_scans(std::vector<Layer>& all) {
  std::vector<InputInfo> inputs = scan_inputs("q", "k");
  const InputInfo by_step{.name = "log_decay", .shape = "broadcast [batch, heads, n]",
                          .meaning = "log of what the state keeps at each step, <= 0", .optional = true,
                          .when = "not channels", .sample = Sample::nonpositive, .strict = true};
  const InputInfo by_channel{.name = "log_decay", .shape = "broadcast [batch, heads, n, dv if decay_on_values else f]",
                             .meaning = "the same for each channel of k (of v with decay_on_values)",
                             .when = "channels", .sample = Sample::nonpositive, .strict = true};
  inputs.insert(inputs.end(), {by_step, by_channel});
  all.push_back({
      .name = "linear_scan",
      .family = "linear attention",
      .formula = "S_t = e^g_t S_{t-1} + k_t' v_t, o_t = q_t S_t",
      .source = "Katharopoulos et al. 2020, Yang et al. 2024 (chunks)",
      .inputs = inputs,
      .outputs = {{"", "[batch, heads, n, dv]"}, {"state", "[batch, heads, f, dv]", "S after the last step",
                                                  "not reverse and not chunks_only and not decay_on_values"}},
      .examples = {{{"chunk", 4}, {"channels", true}}, {{"chunk", 2}, {"chunks_only", true}}, {{"reverse", true}},
                   {{"channels", true}, {"decay_on_values", true}}},
      .sizes = {{"f", 4}},
      .draft = function_layer<ScanCall>(
          [](const ScanCall& o, const Inputs& in) -> Results {
            const Tensor g = in["log_decay"];
            Results results{{"", run_scan(o, in["q"], in["k"], in["v"], g)}};
            if (!o.options.reverse && !o.chunks_only && !o.options.decay_on_values)
              results.push_back({"state", linear_scan_state(in["k"], in["v"], g)});
            return results;
          }),
  });
  inputs = scan_inputs("q", "k");
  inputs.push_back({.name = "alpha", .shape = "[batch, heads, n, f]",
                    .meaning = "what each key channel keeps, in (0, 1]",
                    .sample = Sample::unit, .strict = true});
  all.push_back({
      .name = "gla_attention",
      .family = "linear attention",
      .formula = "S_t = diag(alpha_t) S_{t-1} + k_t' v_t, o_t = scale q_t S_t",
      .source = "Yang et al. 2024",
      .inputs = inputs,
      .outputs = {{"", "[batch, heads, n, dv]"}},
      .sizes = {{"f", 4}},
      .draft = function_layer<GlaCase>(
          [](const LinearAttentionForm& given, const Inputs& in) {
            LinearAttentionForm o = given;
            o.direction = LinearDirection::causal, o.normalize = LinearNormalize::none;
            o.log_decay = log(in["alpha"]);
            return linear_attention(in["q"], in["k"], in["v"], o);
          }),
  });
}

}  // namespace

void add_linear(std::vector<Layer>& all) {
  all.push_back({
      .name = "feature_map",
      .family = "linear attention",
      .formula = "identity x; exp e^x; elu1 elu(x) + 1; relu relu(x W) + offset; t2r relu(x W + b) + offset; "
                 "poly_elem [x, x^2 … x^p]; poly_kernel [x, sqrt c] (x) … (x) [x, sqrt c]; favor e^(x omega - "
                 "|x|^2/2)/sqrt m; fourier [cos x omega, sin x omega]/sqrt f; mlp softplus(relu(x W1 + b1) W2 + b2); "
                 "hedgehog softmax[2y, -2y], y = x W + b",
      .source = "Katharopoulos et al. 2020 (elu1), Kasai et al. 2021 (t2r), Choromanski et al. 2021 (favor), Rahimi & "
                "Recht 2007 (fourier), Zhang et al. 2024 (hedgehog)",
      .derived = {{"m", feature_count("", "dim")}},
      .inputs = {{.name = "x", .shape = "[..., dim]", .when = "heads == 0"},
                 {.name = "x", .shape = "[batch, heads, n, dim]", .when = "heads > 0"}},
      .parameters = feature_map_parameters("", "", "dim", "True"),
      .outputs = {{"", "[..., m]"}},
  });
  std::vector<InputInfo> inputs{
      {.name = "phi_q", .shape = "[batch, heads, m, f]", .when = "direction == 'full'", .sample = Sample::unit},
      {.name = "phi_q", .shape = "[batch, heads, n, f]", .when = "direction != 'full'", .sample = Sample::unit},
      {.name = "phi_k", .shape = "[batch, heads, n, f]", .sample = Sample::unit},
      {.name = "v", .shape = "[batch, heads, n, dv]"},
      {.name = "log_decay", .shape = "broadcast [batch, heads, n]", .meaning = "log of what is kept at each step, <= 0",
       .optional = true, .when = "direction != 'full'", .sample = Sample::nonpositive, .strict = true},
      {.name = "key_mask", .shape = "[batch, n]", .kind = Kind::boolean, .optional = true}};
  all.push_back({
      .name = "linear_attention_form",
      .family = "linear attention",
      .formula = "o_i = phi_q_i U / (phi_q_i Z + eps), U = sum_j phi_k_j' v_j, Z = sum_j phi_k_j",
      .source = "Katharopoulos et al. 2020",
      .notes = "Takes phi(q) and phi(k): see feature_map. With state, output.state is U with Z as its last column.",
      .inputs = inputs,
      .outputs = {{"", "[batch, heads, m if direction == 'full' else n, dv]"},
                  {"state", "[batch, heads, f, dv + int(normalize == 'sum')]", "U and Z beside it",
                   "state and form == 'recurrent'"}},
      .examples = {{{"direction", "causal"}, {"chunk", 4}}, {{"direction", "bidirectional"}, {"form", "quadratic"}},
                   {{"direction", "two_direction_mean"}, {"chunk", 2}},
                   {{"direction", "causal"}, {"form", "recurrent"}, {"state", true}, {"use_rope", true}},
                   {{"direction", "causal"}, {"form", "recurrent"}, {"state", true}, {"normalize", "none"}}},
      .sizes = {{"f", 4}, {"m", 4}},
      .draft = function_layer<LinearCall>(run_linear),
  });
  add_scans(all);
}

}  // namespace layer_check
