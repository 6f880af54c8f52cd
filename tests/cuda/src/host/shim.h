// Enough of CUDA C++ for a C++ compiler to execute kernels on the CPU.
//
// Every thread of a block is a fiber with a stack of its own. Blocks run one after another. A fiber
// runs until it waits at a barrier or a shuffle. Then the scheduler picks the next one, in an order
// that the caller chooses. If a barrier is missing, the result depends on the order, which shows
// when two orders are compared. Shared memory is filled with NaN before each block. A barrier that
// not all threads reach, and a shuffle with lanes that are absent or outside its mask, are errors.
//
// It cannot show errors in memory that one block writes and another reads within one launch, the
// weak ordering of memory on a GPU, and the rounding of a GPU's approximate instructions.
#pragma once
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))

struct Index3 {
    unsigned x, y, z;
};
static Index3 threadIdx, blockIdx, blockDim, gridDim;

// The linker defines these names for the ends of a section. All shared memory of a file lies between
// them.
extern "C" char __start_cuda_shared[], __stop_cuda_shared[];
__attribute__((used)) static char section_is_never_empty __attribute__((section("cuda_shared")));

namespace shim {

enum class State { Runnable, AtBarrier, AtShuffle, Finished };

struct Fiber {
    ucontext_t start;
    jmp_buf resume;
    bool started;
    State state;
    int line;       // of the barrier or shuffle it waits at
    unsigned mask;  // of the shuffle
    unsigned shuffles;
};

constexpr size_t STACK_BYTES = 64 * 1024;
constexpr int WARP = 32;

static std::vector<Fiber> fibers;
static std::vector<char> stacks;
static jmp_buf scheduler;
static ucontext_t bootstrap;
static int current;
static const std::function<void()> *kernel_body;
static std::string error;
// What each lane of each warp offers to a shuffle. There are two slots, because a fast lane may
// already offer to the next shuffle.
static uint64_t offers[32][2][WARP];

static void fail(const std::string &what, int line) {
    if (error.empty())
        error = what + ", line " + std::to_string(line) + ", block " + std::to_string(blockIdx.x) + ", thread " +
                std::to_string(current);
}

static void wait(State state, int line) {
    fibers[current].state = state;
    fibers[current].line = line;
    if (!_setjmp(fibers[current].resume)) _longjmp(scheduler, 1);
}

static void run_fiber() {
    (*kernel_body)();
    fibers[current].state = State::Finished;
    _longjmp(scheduler, 1);
}

static void resume(int index) {
    current = index;
    threadIdx = {(unsigned)index, 0, 0};
    Fiber &fiber = fibers[index];
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = &stacks[index * STACK_BYTES];
    fiber.start.uc_stack.ss_size = STACK_BYTES;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, run_fiber, 0);
    swapcontext(&bootstrap, &fiber.start);
}

static void release_barrier() {
    size_t waiting = 0, finished = 0;
    int line = 0;
    bool same = true;
    for (const Fiber &fiber : fibers) {
        finished += fiber.state == State::Finished;
        if (fiber.state != State::AtBarrier) continue;
        same &= waiting == 0 || fiber.line == line;
        line = fiber.line;
        ++waiting;
    }
    if (waiting == 0) return;
    if (waiting == fibers.size()) {
        if (!same) fail("threads wait at different barriers", line);
        for (Fiber &fiber : fibers) fiber.state = State::Runnable;
    } else if (waiting + finished == fibers.size()) {
        fail("a barrier is not reached by all threads of the block", line);
    }
}

// Lets the lanes of a shuffle continue when all lanes of its mask have arrived.
static void release_shuffles(size_t warp) {
    const size_t first = warp * WARP;
    for (size_t lane = 0; lane < WARP && first + lane < fibers.size(); ++lane) {
        const Fiber waiting = fibers[first + lane];
        if (waiting.state != State::AtShuffle) continue;
        bool complete = true;
        for (size_t other = 0; other < WARP; ++other) {
            if (!(waiting.mask >> other & 1)) continue;
            if (first + other >= fibers.size() || fibers[first + other].state == State::Finished) {
                fail("a shuffle's mask names a lane that does not exist or has exited", waiting.line);
                return;
            }
            const Fiber &fiber = fibers[first + other];
            complete &= fiber.state == State::AtShuffle && fiber.mask == waiting.mask && fiber.line == waiting.line;
        }
        if (!complete) continue;
        for (size_t other = 0; other < WARP; ++other)
            if (waiting.mask >> other & 1) fibers[first + other].state = State::Runnable;
    }
}

// Orders: 0 is ascending, 1 descending, any other number a random order that changes at every round.
static bool run_block(unsigned order, uint64_t &random) {
    const int threads = (int)blockDim.x;
    memset(__start_cuda_shared, 0xFF, __stop_cuda_shared - __start_cuda_shared);
    fibers.assign(threads, Fiber{});
    if (stacks.size() < threads * STACK_BYTES) stacks.resize(threads * STACK_BYTES);
    std::vector<int> turn(threads);
    for (int i = 0; i < threads; ++i) turn[i] = order == 1 ? threads - 1 - i : i;
    for (;;) {
        for (int i = threads - 1; order >= 2 && i > 0; --i) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            std::swap(turn[i], turn[(random >> 33) % (i + 1)]);
        }
        bool progress = false, alive = false;
        for (int i : turn) {
            if (fibers[i].state != State::Runnable) continue;
            resume(i);
            progress = true;
        }
        for (const Fiber &fiber : fibers) alive |= fiber.state != State::Finished;
        if (!alive) return error.empty();
        release_barrier();
        for (size_t warp = 0; warp * WARP < fibers.size(); ++warp) release_shuffles(warp);
        if (!progress) fail("all threads wait for each other", 0);
        if (!error.empty()) return false;
    }
}

static bool launch(unsigned grid, unsigned block, unsigned order, const std::function<void()> &body) {
    error.clear();
    gridDim = {grid, 1, 1};
    blockDim = {block, 1, 1};
    kernel_body = &body;
    uint64_t random = order;
    for (unsigned index = 0; index < grid; ++index) {
        blockIdx = {index, 0, 0};
        if (!run_block(order, random)) return false;
    }
    return true;
}

template <typename T>
static T shuffle(unsigned mask, T value, int source, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    const int lane = current % WARP, warp = current / WARP;
    const unsigned slot = fibers[current].shuffles++ & 1;
    if (!(mask >> lane & 1)) fail("a lane calls a shuffle whose mask leaves it out", line);
    memcpy(&offers[warp][slot][lane], &value, sizeof(T));
    fibers[current].mask = mask;
    wait(State::AtShuffle, line);
    if (source < 0 || source >= WARP) return value;
    if (!(mask >> source & 1)) fail("a shuffle reads a lane outside its mask", line);
    T result;
    memcpy(&result, &offers[warp][slot][source], sizeof(T));
    return result;
}

// The kernels by name. They are called as by cuLaunchKernel, with an array of pointers to the
// arguments.
using Launcher = std::function<bool(unsigned grid, unsigned block, unsigned order, void **arguments)>;
static std::map<std::string, Launcher> kernels;

template <typename... A, size_t... I>
static Launcher launcher(void (*kernel)(A...), std::index_sequence<I...>) {
    return [kernel](unsigned grid, unsigned block, unsigned order, void **arguments) {
        return launch(grid, block, order, [=] { kernel(*static_cast<A *>(arguments[I])...); });
    };
}
struct Registration {
    template <typename... A>
    Registration(const char *name, void (*kernel)(A...)) {
        kernels[name] = launcher(kernel, std::index_sequence_for<A...>{});
    }
};

}  // namespace shim

#define REGISTER(kernel) static shim::Registration register_##kernel(#kernel, kernel);

// Returns 0 if done, 1 if the launch failed and shim_error says why, 2 if there is no such kernel.
extern "C" int shim_launch(const char *kernel, unsigned grid, unsigned block, unsigned order, void **arguments) {
    const auto found = shim::kernels.find(kernel);
    if (found == shim::kernels.end()) return 2;
    return found->second(grid, block, order, arguments) ? 0 : 1;
}
extern "C" const char *shim_error() { return shim::error.c_str(); }

#define __syncthreads() shim::wait(shim::State::AtBarrier, __LINE__)
#define __shfl_down_sync(mask, value, offset) \
    shim::shuffle(mask, value, shim::current % shim::WARP + (int)(offset), __LINE__)
#define __shfl_sync(mask, value, lane) shim::shuffle(mask, value, lane, __LINE__)

// ------------------------------------------------------------------------------------------------- arithmetic

template <typename T>
static inline T min(T a, T b) {
    return a < b ? a : b;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float rsqrtf(float x) { return (float)(1.0 / std::sqrt((double)x)); }
static inline void sincospif(float x, float *sine, float *cosine) {
    *sine = (float)std::sin(M_PI * (double)x);
    *cosine = (float)std::cos(M_PI * (double)x);
}
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float half_to_float(unsigned short half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                            : exponent == 0 ? std::ldexp((float)fraction, -24)
                                            : std::ldexp((float)(fraction | 1024), exponent - 25);
    return half >> 15 ? -magnitude : magnitude;
}
// Rounds to nearest, ties to even: nearbyint rounds the value in units of the last place of a half.
static inline unsigned short float_to_half(float value) {
    const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) return 0x7fff;
    if (magnitude >= 65520.0f) return sign | 0x7c00;
    int exponent;
    std::frexp(magnitude, &exponent);
    const int last_place = magnitude < 0x1p-14f ? -24 : exponent - 11;
    const int units = (int)std::nearbyint(std::ldexp(magnitude, -last_place));
    // A carry out of the fraction goes into the exponent, as rounding up requires.
    return sign | (unsigned short)(last_place == -24 ? units : ((last_place + 24) << 10) + units);
}
