// C has a rand() without arguments; random numbers come from a generator.
// message: deleted function
// says: draw with uniform\(shape, 0, 1, rng\)
using namespace sluice;
namespace of_c {
#ifdef MISTAKE
auto f(Rng&) { return rand({2, 3}); }
#else
auto f(Rng& rng) { return uniform({2, 3}, 0, 1, rng); }
#endif
}  // namespace of_c
