// Feature maps, linear attention and scans as functions of given queries, keys and values.
#include "linear_options.h"
#include "registry.h"

#include <sluice/layers/linear_time/gla.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/scan/linear_scan.h>

namespace layer_check {

using namespace sluice;

void feature_map_options(Options& v, FeatureMapOptions& o, const std::string& p) {
  using enum FeatureMapKind;
  static const Choices<FeatureMapKind> kinds{
      {"identity", identity}, {"exp", exp}, {"elu1", elu1}, {"relu", relu}, {"t2r", t2r}, {"poly_elem", poly_elem},
      {"poly_kernel", poly_kernel}, {"favor", favor}, {"fourier", fourier}, {"mlp", mlp}, {"hedgehog", hedgehog}};
  v((p + "kind").c_str(), o.kind, kinds, "phi");
  v((p + "features").c_str(), o.features, "learned columns or random directions; 0: d, and for relu no W");
  v((p + "degree").c_str(), o.degree, "p of poly_elem and poly_kernel");
  v((p + "constant").c_str(), o.constant, "c of poly_kernel");
  v((p + "smoothing").c_str(), o.smoothing, "fourier: one more feature sqrt(smoothing)");
  v((p + "offset").c_str(), o.offset, "relu, t2r: added, keeps sums away from 0");
  v((p + "hidden").c_str(), o.hidden, "mlp; 0: 2*d");
  v((p + "bias").c_str(), o.bias, "t2r, mlp, hedgehog");
  v((p + "heads").c_str(), o.heads, "weights [heads, d, m], a map for each head; 0: one map for all");
  v((p + "input_scale").c_str(), o.input_scale, "x is multiplied by it first; null: 1");
}

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

struct LinearCall {
  enum Form { chunked, quadratic, recurrent } form = chunked;
  LinearAttentionForm options;
  bool use_rope = false;
  RopeOptions rope;
  bool state = false;
};

void linear_call_options(Options& v, LinearCall& o) {
  static const Choices<LinearCall::Form> forms{
      {"chunked", LinearCall::chunked}, {"quadratic", LinearCall::quadratic}, {"recurrent", LinearCall::recurrent}};
  v("form", o.form, forms, "which of the equal forms: scan in chunks (or by associativity), the n x n matrix, or one "
                           "token at a time (causal only)");
  v("direction", o.options.direction, linear_directions(), kDirectionMeaning);
  v("normalize", o.options.normalize, linear_normalizers(), "sum: divide by phi(q) Z + eps");
  v("eps", o.options.eps, "of the denominator");
  v("scale", o.options.scale, "of phi(q)");
  v("chunk", o.options.chunk, "steps at once; changes rounding only");
  v("use_rope", o.use_rope, "rotate phi(q) and phi(k) in the numerator");
  rope_options(v, o.rope);
  v("state", o.state, "recurrent: write the state after the last token");
}

Results run_linear(const LinearCall& call, const Inputs& in) {
  LinearAttentionForm form = call.options;
  form.log_decay = in["log_decay"], form.key_mask = in["key_mask"];
  if (call.use_rope) form.rope = call.rope;
  const Tensor q = in["phi_q"], k = in["phi_k"], v = in["v"];
  if (call.form == LinearCall::chunked) return {{"", linear_attention(q, k, v, form)}};
  if (call.form == LinearCall::quadratic) return {{"", linear_attention_quadratic(q, k, v, form)}};
  LinearState state;
  std::vector<Tensor> rows;
  const Tensor decay = form.log_decay, mask = form.key_mask;
  for (int64_t i = 0; i < k.dim(2); ++i) {
    auto at = [&](const Tensor& x, int64_t dim) { return narrow(x, dim, i, 1); };
    if (decay.defined()) form.log_decay = decay.dim(2) == 1 ? decay : at(decay, 2);
    if (mask.defined()) form.key_mask = at(mask, 1);
    auto [y, next] = linear_attention_recurrent(at(q, 2), at(k, 2), at(v, 2), form, state);
    rows.push_back(y), state = next;
  }
  Results results{{"", cat(rows, 2)}};
  if (call.state) results.push_back({"state", state.sums});
  return results;
}

std::vector<InputInfo> scan_inputs(const std::string& q, const std::string& k) {
  return {{.name = q, .shape = "[batch, heads, n, f]"}, {.name = k, .shape = "[batch, heads, n, f]"},
          {.name = "v", .shape = "[batch, heads, n, dv]"}};
}

void add_scans(std::vector<Layer>& all) {
  std::vector<InputInfo> inputs = scan_inputs("q", "k");
  const InputInfo by_step{.name = "log_decay", .shape = "broadcast [batch, heads, n]",
                          .meaning = "log of what the state keeps at each step, <= 0", .optional = true,
                          .when = "not channels", .sample = Sample::nonpositive};
  const InputInfo by_channel{.name = "log_decay", .shape = "broadcast [batch, heads, n, dv if decay_on_values else f]",
                             .meaning = "the same for each channel of k (of v with decay_on_values)",
                             .when = "channels", .sample = Sample::nonpositive};
  inputs.insert(inputs.end(), {by_step, by_channel});
  struct Call {
    LinearScanOptions options;
    bool channels = false;
  };
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
      .prepare = function_layer<Call>(
          [](Options& v, Call& o) {
            v("channels", o.channels, "log_decay is [batch, heads, n, f] instead of [batch, heads, n]");
            v("chunk", o.options.chunk, "steps at once; changes rounding only, unless chunks_only");
            v("chunks_only", o.options.chunks_only, "o_t = q_t S at the start of the chunk of t");
            v("reverse", o.options.reverse, "from the last step to the first");
            v("decay_on_values", o.options.decay_on_values, "the channels of log_decay are those of v");
          },
          [](const Call& o, const Inputs& in) -> Results {
            const Tensor g = in["log_decay"];
            Results results{{"", linear_scan(in["q"], in["k"], in["v"], g, o.options)}};
            if (!o.options.reverse && !o.options.chunks_only && !o.options.decay_on_values)
              results.push_back({"state", linear_scan_state(in["k"], in["v"], g)});
            return results;
          }),
  });
  inputs = scan_inputs("q", "k");
  inputs.push_back({.name = "alpha", .shape = "[batch, heads, n, f]",
                    .meaning = "what each key channel keeps, in (0, 1]",
                    .sample = Sample::unit});
  all.push_back({
      .name = "gla_attention",
      .family = "linear attention",
      .formula = "S_t = diag(alpha_t) S_{t-1} + k_t' v_t, o_t = scale q_t S_t",
      .source = "Yang et al. 2024",
      .inputs = inputs,
      .outputs = {{"", "[batch, heads, n, dv]"}},
      .sizes = {{"f", 4}},
      .prepare = function_layer<LinearAttentionForm>(
          [](Options& v, LinearAttentionForm& o) {
            v("scale", o.scale, "of q");
            v("chunk", o.chunk, "steps at once; changes rounding only");
          },
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
      .examples = {{{"kind", "identity"}},
                   {{"kind", "exp"}},
                   {{"kind", "relu"}},
                   {{"kind", "relu"}, {"features", 5}, {"heads", 2}},
                   {{"kind", "t2r"}, {"features", 5}},
                   {{"kind", "poly_elem"}, {"degree", 3}},
                   {{"kind", "poly_kernel"}},
                   {{"kind", "favor"}, {"features", 6}},
                   {{"kind", "fourier"}, {"smoothing", 0.1}},
                   {{"kind", "fourier"}},
                   {{"kind", "mlp"}, {"hidden", 5}, {"heads", 2}}, {{"kind", "hedgehog"}}},
      .prepare = module_layer<FeatureMap, FeatureMapOptions>(
          [](Options& v, FeatureMapOptions& o) {
            v.required("dim", o.dim, 4, "width d of x");
            feature_map_options(v, o, "");
          },
          [](const FeatureMap& l, const Inputs& in) { return l(in["x"]); }),
  });
  std::vector<InputInfo> inputs{
      {.name = "phi_q", .shape = "[batch, heads, m, f]", .when = "direction == 'full'", .sample = Sample::unit},
      {.name = "phi_q", .shape = "[batch, heads, n, f]", .when = "direction != 'full'", .sample = Sample::unit},
      {.name = "phi_k", .shape = "[batch, heads, n, f]", .sample = Sample::unit},
      {.name = "v", .shape = "[batch, heads, n, dv]"},
      {.name = "log_decay", .shape = "broadcast [batch, heads, n]", .meaning = "log of what is kept at each step, <= 0",
       .optional = true, .when = "direction != 'full'", .sample = Sample::nonpositive},
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
      .prepare = function_layer<LinearCall>(linear_call_options, run_linear),
  });
  add_scans(all);
}

}  // namespace layer_check
