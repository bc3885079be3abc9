/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the allocations of memory, locks and system calls that one library makes in a
 * process: LD_PRELOAD=bounded_op.so. Used by tests/step_op.py.
 *
 * The library and ONNX Runtime call each other. A call is counted if the innermost frame on the
 * stack that belongs to one of the two belongs to the library. A seccomp filter turns each system
 * call into a signal, whose handler counts the call and then makes it. */

#define _GNU_SOURCE

#include <execinfo.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

enum { kFrames = 64 };

typedef struct Range {
  uintptr_t from, to;
} Range;

/* addresses of the code of the library, and of ONNX Runtime */
static Range library, onnxruntime;
static long allocations, locks, system_calls;
static __thread int counting; /* nonzero in the thread that is counted, but not within Count */

static int Holds(Range range, const void* address) {
  return (uintptr_t)address >= range.from && (uintptr_t)address < range.to;
}

/* Adds 1 to the counter if the library made the call. */
static void Count(long* counter) {
  if (!counting) return;
  counting = 0; /* backtrace may allocate */
  void* frames[kFrames];
  const int depth = backtrace(frames, kFrames);
  for (int i = 0; i < depth; ++i) {
    if (Holds(library, frames[i])) ++*counter;
    if (Holds(library, frames[i]) || Holds(onnxruntime, frames[i])) break;
  }
  counting = 1;
}

static void CountAllocation(void) { Count(&allocations); }

/* Not counted: ONNX Runtime ends functions with a jump to `free`, which leaves no frame of its own.
 */
static void CountRelease(void) {}

static void CountLock(void) { Count(&locks); }

#include "counted_functions.h"

/* Makes a system call. The filter allows those that return to the label. */
__attribute__((noinline)) static long MakeSystemCall(const long long* r) {
  register long r10 __asm__("r10") = (long)r[REG_R10];
  register long r8 __asm__("r8") = (long)r[REG_R8];
  register long r9 __asm__("r9") = (long)r[REG_R9];
  long result = (long)r[REG_RAX];
  __asm__ volatile(
      "syscall\n"
      ".globl bounded_op_called\n"
      "bounded_op_called:"
      : "+a"(result)
      : "D"(r[REG_RDI]), "S"(r[REG_RSI]), "d"(r[REG_RDX]), "r"(r10), "r"(r8), "r"(r9)
      : "rcx", "r11", "memory");
  return result;
}

extern const char bounded_op_called[] __attribute__((visibility("hidden")));

static void OnSystemCall(int signal, siginfo_t* info, void* context) {
  (void)signal;
  Count(&system_calls);
  greg_t* const registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  registers[REG_RAX] = info->si_syscall;
  registers[REG_RAX] = MakeSystemCall(registers);
}

/* Turns every system call of this thread into a signal, but those of `MakeSystemCall` and of the
 * end of the handler. */
static int TrapSystemCalls(void) {
  const uintptr_t allowed = (uintptr_t)bounded_op_called;
  const unsigned at = offsetof(struct seccomp_data, instruction_pointer);
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(allowed >> 32), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  const struct sock_fprog filter = {sizeof program / sizeof *program, program};
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = OnSystemCall;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* Starts to count what this thread does. Returns 0 if system calls cannot be counted. */
int bounded_op_begin(uintptr_t from, uintptr_t to, uintptr_t onnxruntime_from,
                     uintptr_t onnxruntime_to) {
  static int trapped;
  void* frame;
  backtrace(&frame, 1);
  library = (Range){from, to};
  onnxruntime = (Range){onnxruntime_from, onnxruntime_to};
  allocations = locks = system_calls = 0;
  if (!trapped) trapped = TrapSystemCalls();
  counting = trapped;
  return trapped;
}

/* Stops counting, and returns the numbers of allocations, locks and system calls. */
void bounded_op_end(long* numbers) {
  counting = 0;
  numbers[0] = allocations;
  numbers[1] = locks;
  numbers[2] = system_calls;
}
