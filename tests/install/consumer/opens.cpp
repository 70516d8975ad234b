// A program that opens libraries while it runs, in the order of its arguments, as plug-ins and modules of Python do.
#include <dlfcn.h>

#include <cstdio>

int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    void* library = dlopen(names[i], RTLD_NOW);
    if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    // What another module has done before: libstdc++'s thread-local variables have their place from then on.
    if (void* use = dlsym(library, "__cxa_get_globals")) reinterpret_cast<void* (*)()>(use)();
  }
}
