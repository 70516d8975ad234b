// Regression on a CSV file: a straight line and an MLP predict one column from all others.
//
//   08_regression_csv [FILE.csv TARGET]      without arguments: 600 houses that never stood, written to houses.csv
#include <sluice/sluice.h>

#include <cstdio>
#include <fstream>
#include <string>

using namespace sluice;

void write_houses(const std::string& path) {
  Rng rng(7);
  const std::vector<float> u = uniform({600 * 4}, 0, 1, rng).to_vector();  // four for each house
  const char* quarters[] = {"harbour", "hill", "\"old town\""};
  std::ofstream out(path);
  out << "area,rooms,age,quarter,price\n";
  for (std::size_t i = 0; i < u.size(); i += 4) {
    const double area = 30 + 170 * u[i], age = 120 * u[i + 1];
    const int quarter = int(3 * u[i + 2]);
    const double worth =
        area * (quarter == 1 ? 4 : 2.5) - 0.02 * area * (age < 60 ? age : 120 - age);  // old is new again
    out << area << ',' << 1 + int(area / 30) << ',' << age << ',' << quarters[quarter] << ',' << worth + 8 * u[i + 3]
        << '\n';
  }
}

/// Every column but `target`: numbers as they are, words as one-hot vectors. [rows, features]
Tensor features(const Csv& csv, const std::string& target) {
  std::vector<Tensor> all;
  for (const std::string& name : csv.names) {
    if (name == target) continue;
    try {
      all.push_back(unsqueeze(csv.column(name), 1));
    } catch (const IOError&) {  // not numbers
      std::vector<std::string> words;
      const Tensor places = csv.classes(name, words);
      all.push_back(one_hot(places, int64_t(words.size())));
    }
  }
  return cat(all, 1);
}

struct Net {
  Linear in;
  Mlp hidden;
  Linear out;
  Tensor operator()(const Tensor& x) const { return out(hidden(in(x))); }
  SLUICE_PARTS(in, hidden, out);
};

/// Trains on the first `used` rows; the share of the variance that it explains in the others (R²).
double explained(const auto& model, const Tensor& x, const Tensor& y, int64_t used, int64_t epochs) {
  Loader loader({.rows = used, .batch = 32, .seed = 1},
                [&](const Tensor& rows) { return std::pair(index_select(x, 0, rows), index_select(y, 0, rows)); });
  Adam adam(parameters(model), {.lr = 0.01});
  const Schedule rate = cosine_schedule({.lr = 0.01, .total = epochs * loader.batches()});
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    for (const auto& [inputs, wanted] : loader) {
      adam.zero_grad();
      backward(mse_loss(squeeze(model(inputs), 1), wanted));
      adam.set_lr(rate(adam.steps()));
      adam.step();
    }
  const Tensor rest = slice(y, 0, used), guess = squeeze(model(slice(x, 0, used)), 1);
  return 1 - mse_loss(guess, rest).item() / var(rest, {}, false, 0).item();
}

int main(int argc, char** argv) try {
  const bool given = argc == 3, smoke = argc == 2 && std::string(argv[1]) == "--smoke";
  if (argc > 1 && !given && !smoke) throw ValueError("usage: 08_regression_csv [FILE.csv TARGET]");
  const std::string path = given ? argv[1] : "houses.csv", target = given ? argv[2] : "price";
  if (!given) write_houses(path);

  const Csv csv = read_csv(path);
  Rng rng(1);
  const Tensor order = permutation(csv.rows(), rng);  // a sorted file is no trap
  const int64_t used = csv.rows() * 4 / 5;
  Tensor y = index_select(csv.column(target), 0, order);
  if (csv.rows() < 10 || csv.names.size() < 2 || max(slice(y, 0, used)).item() == min(slice(y, 0, used)).item())
    throw ValueError("'" + path + "': need 10 rows, a column beside \"" + target + "\", and a target that varies");
  Tensor x = index_select(features(csv, target), 0, order);
  // Every column gets mean 0 and deviation 1, measured on the training rows alone.
  const auto standardised = [&](const Tensor& t) {
    const Tensor known = slice(t, 0, 0, used);
    return (t - mean(known, {0}, keep)) / clamp(std_dev(known, {0}, keep), 1e-6);
  };
  x = standardised(x), y = standardised(y);
  std::printf("%s: %lld rows, %lld features\n", path.c_str(), (long long)csv.rows(), (long long)x.dim(1));

  const Linear line({x.dim(1), 1}, rng);
  const Net net{Linear({x.dim(1), 32}, rng), Mlp(MlpOptions{.dim = 32}, rng), Linear({32, 1}, rng)};
  const double by_line = explained(line, x, y, used, smoke ? 1 : 50),
               by_net = explained(net, x, y, used, smoke ? 1 : 50);
  std::printf("explained on held-out rows: a line %.1f %%, an MLP %.1f %%\n", 100 * by_line, 100 * by_net);
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

// Expected output, figures within 2 %:
// houses.csv: 600 rows, 6 features
// explained on held-out rows: a line 84.8 %, an MLP 99.8 %
