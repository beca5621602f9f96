/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Output as JSON, written as it comes.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/json.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "access/xlogdefs.h"
#include "mb/pg_wchar.h"
#include "pg_doublewrite.h"

#define MAX_DEPTH 8

static int	depth = 0;
static char closer[MAX_DEPTH];
static bool has_members[MAX_DEPTH];

static void
json_quoted(const char *s)
{
	putchar('"');
	for (; *s != '\0'; s++)
	{
		unsigned char c = *s;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20)
			printf("\\u%04x", c);
		else if (c >= 0x80)
		{
			/* a path may be in any encoding */
			int			len = pg_utf_mblen((const unsigned char *) s);

			if (strnlen(s, len) == len &&
				pg_utf8_islegal((const unsigned char *) s, len))
			{
				printf("%.*s", len, s);
				s += len - 1;
			}
			else
				printf("\\ufffd");
		}
		else
			putchar(c);
	}
	putchar('"');
}

/*
 * Start a member of what is open; key is NULL in an array.
 */
static void
json_member(const char *key)
{
	if (depth > 0)
	{
		printf(has_members[depth - 1] ? ",\n" : "\n");
		has_members[depth - 1] = true;
	}
	printf("%*s", depth * 2, "");
	if (key != NULL)
	{
		json_quoted(key);
		printf(": ");
	}
}

static void
json_open(const char *key, char opening, char closing)
{
	Assert(depth < MAX_DEPTH);
	json_member(key);
	putchar(opening);
	closer[depth] = closing;
	has_members[depth] = false;
	depth++;
}

void
json_open_object(const char *key)
{
	json_open(key, '{', '}');
}

void
json_open_array(const char *key)
{
	json_open(key, '[', ']');
}

void
json_close(void)
{
	Assert(depth > 0);
	depth--;
	if (has_members[depth])
		printf("\n%*s", depth * 2, "");
	putchar(closer[depth]);
	if (depth == 0)
		putchar('\n');
}

void
json_string(const char *key, const char *value)
{
	if (value == NULL)
	{
		json_null(key);
		return;
	}
	json_member(key);
	json_quoted(value);
}

void
json_uint(const char *key, uint64 value)
{
	json_member(key);
	printf("%" PRIu64, value);
}

/*
 * A time, never negative.  Not by "%.3f", which uses the locale's decimal sign.
 */
void
json_double(const char *key, double value)
{
	uint64		thousandths = value > 0 ? (uint64) (value * 1000 + 0.5) : 0;

	json_member(key);
	printf("%" PRIu64 ".%03u", thousandths / 1000, (unsigned int) (thousandths % 1000));
}

void
json_bool(const char *key, bool value)
{
	json_member(key);
	printf("%s", value ? "true" : "false");
}

void
json_null(const char *key)
{
	json_member(key);
	printf("null");
}

void
json_lsn(const char *key, XLogRecPtr value)
{
	json_member(key);
	printf("\"%X/%X\"", LSN_FORMAT_ARGS(value));
}
