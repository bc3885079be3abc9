/* SPDX-License-Identifier: Apache-2.0 */
/* Audio of one channel with 16-bit samples: a wav file, or standard input. */

#ifndef EDGERNN_EXAMPLES_AUDIO_H_
#define EDGERNN_EXAMPLES_AUDIO_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct Audio {
  FILE* file;
  const char* name;
  int64_t rate;            /* samples per second */
  uint64_t promised;       /* number of samples that the header says, or 0 if it is unknown */
  uint64_t left;           /* number of samples that are left */
  unsigned char first[12]; /* bytes that were read to find out the format, and are samples */
  size_t first_count, first_used;
} Audio;

/* Opens a wav file, or standard input for the name "-": a wav file too, or samples alone. Any other
 * rate, number of channels or size of samples ends the program with an error. */
Audio OpenAudio(const char* name, int64_t rate);

/* Reads up to `count` samples as numbers from -1 to 1. Returns how many there were: fewer at the
 * end of the audio, or if a signal came. Audio that ends before the samples that its header says
 * ends the program with an error. */
size_t ReadSamples(Audio* audio, float* samples, size_t count);

#endif /* EDGERNN_EXAMPLES_AUDIO_H_ */
