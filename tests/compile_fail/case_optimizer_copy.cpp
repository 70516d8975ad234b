// Two optimisers on the same parameters would share their moments.
// message: use of deleted function|call to implicitly-deleted copy constructor
namespace optimizer_copy {
using namespace sluice;
#ifdef MISTAKE
void f(Adam& adam) { Adam twin = adam; }
#else
void f(Adam& adam) {
  Adam& same = adam;
  same.step();
}
#endif
}  // namespace optimizer_copy
