/* SPDX-License-Identifier: Apache-2.0 */
/* Semihosting, by which a program in qemu prints to the terminal, and the count of instructions. */

#include "board.h"

enum { kWrite0 = 4, kExit = 0x18, kExitExtended = 0x20 };

#if defined(__arm__)

#define SYSTICK ((volatile uint32_t*)0xe000e010) /* control, reload, value */

static uint32_t semihost(uint32_t call, const void* argument) {
  register uint32_t r0 __asm__("r0") = call;
  register const void* r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

/* counts down from 2^24 - 1 at the processor's clock */
void board_start_count(void) {
  SYSTICK[0] = 0;
  SYSTICK[1] = 0xffffff;
  SYSTICK[2] = 0;
  SYSTICK[0] = 5;
}

uint32_t board_count(void) { return 0xffffff - (SYSTICK[2] & 0xffffff); }

#define LOOP "1: subs %0, %0, #1\n bne 1b\n"

#else

static uint32_t semihost(uint32_t call, const void* argument) {
  register uint32_t a0 __asm__("a0") = call;
  register const void* a1 __asm__("a1") = argument;
  __asm__ volatile(
      ".option push\n .option norvc\n .balign 16\n"
      "slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n .option pop"
      : "+r"(a0)
      : "r"(a1)
      : "memory");
  return a0;
}

static uint32_t start;

static uint32_t instructions(void) {
  uint32_t count;
  __asm__ volatile("csrr %0, minstret" : "=r"(count));
  return count;
}

void board_start_count(void) { start = instructions(); }

uint32_t board_count(void) { return instructions() - start; }

#define LOOP "1: addi %0, %0, -1\n bnez %0, 1b\n"

#endif

uint32_t board_unit(void) {
  uint32_t rounds = 1000000;
  board_start_count();
  __asm__ volatile(LOOP : "+r"(rounds) : : "cc");
  return (2000000u << 8) / board_count();
}

void board_print(const char* text) { semihost(kWrite0, text); }

void board_print_hex(uint32_t number) {
  char text[10];
  for (int i = 0; i < 8; ++i) text[i] = "0123456789abcdef"[number >> (28 - 4 * i) & 15];
  text[8] = ' ';
  text[9] = '\0';
  board_print(text);
}

void board_exit(int status) {
  const uint32_t reason[] = {0x20026, (uint32_t)status}; /* application exit */
  semihost(kExitExtended, reason);
  semihost(kExit, (const void*)(uintptr_t)reason[0]);
  for (;;) {
  }
}
