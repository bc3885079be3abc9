/* SPDX-License-Identifier: Apache-2.0 */

#define _POSIX_C_SOURCE 200809L /* for fileno */

#include "audio.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "packed_model.h"

enum { kBytes = 2, kPcm = 1, kExtensible = 0xfffe };

/* Formats of samples that are not read. */
static const struct {
  uint32_t format;
  const char* name;
} kinds[] = {{3, "floating-point"}, {6, "A-law"}, {7, "mu-law"}, {17, "ADPCM"}, {85, "MP3"}};

/* Size of the samples that stands for the one in the chunk "ds64". */
static const uint64_t in_ds64 = 0xffffffff;

/* A program that streams a wav file does not know its size, and claims this many bytes of samples
 * or more. */
static const uint64_t unknown_bytes = 0x7fff0000;

static uint32_t Number(const unsigned char* from, int bytes) {
  uint32_t number = 0;
  for (int i = bytes - 1; i >= 0; --i) number = (number << 8) | from[i];
  return number;
}

/* Fails with the command that converts a sound file to one that this file reads. */
static void FailToConvert(const Audio* audio, const char* fault) {
  Fail("%s: %s; convert it with ffmpeg -i FILE -ac 1 -ar %lld -c:a pcm_s16le NEW.wav", audio->name,
       fault, (long long)audio->rate);
}

static void FailFormat(const Audio* audio, const char* reason) {
  char fault[200];
  snprintf(fault, sizeof fault,
           "expected a wav file with 16-bit PCM samples, got another or a damaged one (%s)",
           reason);
  FailToConvert(audio, fault);
}

static void CheckNumber(const Audio* audio, const char* expected, uint32_t got, uint32_t wanted) {
  char fault[100];
  if (got == wanted) return;
  snprintf(fault, sizeof fault, "expected %s, got %u", expected, (unsigned)got);
  FailToConvert(audio, fault);
}

static void FailKind(const Audio* audio, uint32_t format, uint32_t bits) {
  const char* name = "unknown";
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    if (kinds[i].format == format) name = kinds[i].name;
  }
  char fault[100];
  snprintf(fault, sizeof fault, "expected 16-bit PCM samples, got %s samples of %u bits", name,
           (unsigned)bits);
  FailToConvert(audio, fault);
}

static void ReadHeader(const Audio* audio, unsigned char* to, size_t bytes) {
  if (fread(to, 1, bytes, audio->file) != bytes) FailFormat(audio, "a truncated header");
}

static void Skip(const Audio* audio, uint64_t bytes) {
  for (unsigned char byte; bytes > 0; --bytes) ReadHeader(audio, &byte, 1);
}

/* Checks the chunk "fmt " of a wav file. */
static void CheckFormat(const Audio* audio, uint64_t bytes) {
  unsigned char chunk[40] = {0};
  const size_t known = bytes < sizeof chunk ? (size_t)bytes : sizeof chunk;
  ReadHeader(audio, chunk, known);
  Skip(audio, bytes - known);
  uint32_t format = Number(chunk, 2);
  if (format == kExtensible) format = Number(chunk + 24, 2);
  if (bytes < 16) FailFormat(audio, "unknown format");
  if (format != kPcm) FailKind(audio, format, Number(chunk + 14, 2));
  char expected[60];
  snprintf(expected, sizeof expected, "%lld samples per second", (long long)audio->rate);
  CheckNumber(audio, "samples of 16 bits", Number(chunk + 14, 2), 8 * kBytes);
  CheckNumber(audio, "one channel", Number(chunk + 2, 2), 1);
  CheckNumber(audio, expected, Number(chunk + 4, 4), (uint32_t)audio->rate);
  const uint32_t frame = Number(chunk + 12, 2);
  if (frame == kBytes) return;
  char fault[140];
  snprintf(fault, sizeof fault,
           "expected 2 bytes for a sample of all channels, got %u in the header: they are padded, "
           "or it is damaged",
           (unsigned)frame);
  FailToConvert(audio, fault);
}

/* Reads the chunks up to the samples, and returns the bytes of the samples. */
static uint64_t FindSamples(const Audio* audio) {
  int has_format = 0;
  uint64_t long_bytes = 0;
  for (;;) {
    unsigned char chunk[8];
    ReadHeader(audio, chunk, sizeof chunk);
    uint64_t bytes = Number(chunk + 4, 4);
    if (memcmp(chunk, "data", 4) == 0) {
      if (!has_format) FailFormat(audio, "no format before the samples");
      return bytes == in_ds64 && long_bytes > 0 ? long_bytes : bytes;
    }
    /* an RF64 file may have the size of the samples in a chunk of its own */
    if (memcmp(chunk, "ds64", 4) == 0 && bytes >= 16) {
      unsigned char sizes[16];
      ReadHeader(audio, sizes, sizeof sizes);
      long_bytes = Number(sizes + 8, 4) | (uint64_t)Number(sizes + 12, 4) << 32;
      bytes -= sizeof sizes;
    }
    const int is_format = memcmp(chunk, "fmt ", 4) == 0;
    if (is_format) CheckFormat(audio, bytes);
    has_format |= is_format;
    /* chunks have even sizes */
    Skip(audio, (is_format ? 0 : bytes) + bytes % 2);
  }
}

/* Fails because the audio has fewer samples than its header says. */
static void FailTruncated(const Audio* audio, uint64_t expected, uint64_t got) {
  Fail(
      "%s: expected %llu samples as its header says, got %llu; the file is truncated: copy or "
      "record it again",
      audio->name, (unsigned long long)expected, (unsigned long long)got);
}

/* Fails if a file ends before its samples do. */
static void CheckSize(const Audio* audio, uint64_t bytes) {
  struct stat info;
  const long at = ftell(audio->file);
  if (bytes >= unknown_bytes) return;
  if (fstat(fileno(audio->file), &info) != 0 || !S_ISREG(info.st_mode) || at < 0) return;
  const uint64_t left = (uint64_t)info.st_size - (uint64_t)at;
  /* the last byte of an odd size counts as a missing sample */
  if (bytes > left) FailTruncated(audio, (bytes + 1) / kBytes, left / kBytes);
  if (bytes == 0 && left >= kBytes) {
    char fault[200];
    snprintf(fault, sizeof fault,
             "expected the number of samples in the header, got 0 before %llu bytes: the recorder "
             "was stopped before it wrote the number",
             (unsigned long long)left);
    FailToConvert(audio, fault);
  }
  if (bytes == 0) Fail("%s: expected samples, got none; record it again", audio->name);
}

static int IsWav(const unsigned char* first) {
  const int begins = memcmp(first, "RIFF", 4) == 0 || memcmp(first, "RF64", 4) == 0;
  return begins && memcmp(first + 8, "WAVE", 4) == 0;
}

Audio OpenAudio(const char* name, int64_t rate) {
  Audio audio;
  memset(&audio, 0, sizeof audio);
  const int is_input = strcmp(name, "-") == 0;
  audio.file = is_input ? stdin : fopen(name, "rb");
  audio.name = is_input ? "standard input" : name;
  audio.rate = rate;
  audio.left = UINT64_MAX;
  if (audio.file == NULL) {
    Fail("%s: %s; check the path", name, errno == ENOENT ? "no such file" : strerror(errno));
  }
  audio.first_count = fread(audio.first, 1, sizeof audio.first, audio.file);
  if (audio.first_count == 0 && !is_input) {
    Fail("%s: expected a wav file, got an empty file; copy or make it again", name);
  }
  if (audio.first_count == sizeof audio.first && IsWav(audio.first)) {
    audio.first_count = 0;
    const uint64_t bytes = FindSamples(&audio);
    CheckSize(&audio, bytes);
    if (bytes < unknown_bytes && (bytes > 0 || !is_input)) {
      audio.left = audio.promised = bytes / kBytes;
    }
  } else if (!is_input) {
    FailFormat(&audio, "it does not begin with RIFF, a size and WAVE");
  }
  return audio;
}

/* Reads bytes, those of `first` before those of the file. */
static size_t ReadBytes(Audio* audio, unsigned char* to, size_t bytes) {
  size_t count = 0;
  while (count < bytes && audio->first_used < audio->first_count) {
    to[count++] = audio->first[audio->first_used++];
  }
  return count + fread(to + count, 1, bytes - count, audio->file);
}

size_t ReadSamples(Audio* audio, float* samples, size_t count) {
  size_t read = 0;
  for (unsigned char bytes[kBytes]; read < count && audio->left > 0; ++read, --audio->left) {
    if (ReadBytes(audio, bytes, kBytes) < kBytes) break;
    /* from two's complement */
    const int32_t sample = (int32_t)(Number(bytes, kBytes) ^ 0x8000u) - 0x8000;
    samples[read] = (float)sample / 32768.0f;
  }
  if (ferror(audio->file)) {
    if (errno == EINTR) return read;
    Fail("%s: %s", audio->name, strerror(errno));
  }
  /* the size of a pipe is not known when it is opened */
  if (read < count && audio->promised > 0 && audio->left > 0) {
    FailTruncated(audio, audio->promised, audio->promised - audio->left);
  }
  return read;
}
