/*-------------------------------------------------------------------------
 *
 * leave.c
 *	  What is left of double writes in a cluster that is to go back to stock
 *	  PostgreSQL: files, settings, and what has been made with SQL.
 *
 * Files are looked for in the data directory, settings in the configuration
 * files and those that they include.  What stands in the catalogs only a server
 * can tell: if one runs, it is asked by its socket, each database in turn.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/leave.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalog/pg_authid_d.h"
#include "common/logging.h"
#include "common/string.h"
#include "lib/stringinfo.h"
#include "libpq-fe.h"
#include "pg_doublewrite.h"
#include "utils/pidfile.h"

/* What stock does not know, and does not start with */
static const char *const our_settings[] = {
	"debug_atomic_writes_in_software",
	"double_write_buffer_size",
	"double_write_compression",
	"double_write_stage_size",
	"instant_recovery",
	"instant_recovery_memory",
	"io_torn_pages_protection",
	"recovery_workers",
	"show_recovery_progress",
	"wal_pipeline",
	"wal_pipeline_queue_size",
};

/* In seconds; ours may be shorter */
#define STOCK_MIN_CHECKPOINT_TIMEOUT 30

/* As the server has it */
#define CONF_FILE_MAX_DEPTH 10

#define EXTENSION "pg_doublewrite_stats"

/* What is left */
struct Left
{
	const char *kind;
	char	   *place;			/* where it is */
	char	   *name;			/* what it is */
	bool		stops;			/* stock does not start with it */
	char	   *todo;
	struct Left *next;
};

static struct Left *first_left = NULL;
static struct Left **last_left = &first_left;

/*
 * Note that something is left.  All strings are the list's now.
 */
static void
note_left(const char *kind, char *place, char *name, bool stops, char *todo)
{
	struct Left *left = pg_malloc(sizeof(struct Left));

	left->kind = kind;
	left->place = place;
	left->name = name;
	left->stops = stops;
	left->todo = todo;
	left->next = NULL;
	*last_left = left;
	last_left = &left->next;
}

/* ---------------------------------------------------------------------
 * Configuration files
 * ---------------------------------------------------------------------
 */

static void read_config(const char *path, bool must_exist, int depth);

static bool
is_ours(const char *name)
{
	for (int i = 0; i < lengthof(our_settings); i++)
	{
		if (pg_strcasecmp(name, our_settings[i]) == 0)
			return true;
	}
	return false;
}

/*
 * Seconds of a time as configuration files have it, -1 if it is none.
 */
static double
seconds_of(const char *value)
{
	static const struct
	{
		const char *name;
		double		seconds;
	}			units[] = {
		{"", 1}, {"us", 0.000001}, {"ms", 0.001}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400},
	};
	char	   *unit;
	double		number = strtod(value, &unit);

	while (isspace((unsigned char) *unit))
		unit++;
	for (int i = 0; i < lengthof(units); i++)
	{
		if (unit != value && strcmp(unit, units[i].name) == 0)
			return number * units[i].seconds;
	}
	return -1;
}

/*
 * Split a line into name and value; returns false if there is no setting in
 * it.  Overwrites the line.
 */
static bool
parse_line(char *line, char **name, char **value)
{
	char	   *p = line + strspn(line, " \t\r\n");
	char	   *to;

	*name = p;
	p += strcspn(p, " \t\r\n=#'");
	if (p == *name)
		return false;
	while (*p == ' ' || *p == '\t' || *p == '=')
		*p++ = '\0';
	*value = to = p;
	if (*p != '\'')
	{
		p[strcspn(p, " \t\r\n#")] = '\0';
		return true;
	}
	/* within quotes, a quote is doubled or behind a backslash */
	for (p++; *p != '\0' && !(*p == '\'' && p[1] != '\''); p++)
	{
		if ((*p == '\\' || *p == '\'') && p[1] != '\0')
			p++;
		*to++ = *p;
	}
	*to = '\0';
	return true;
}

/*
 * Read all files of a directory whose names end in ".conf", as the server does.
 */
static void
read_config_directory(const char *path, int depth)
{
	DIR		   *dir = opendir(path);
	struct dirent *de;

	if (dir == NULL)
		pg_fatal("could not open directory \"%s\": %m", path);
	while (errno = 0, (de = readdir(dir)) != NULL)
	{
		if (de->d_name[0] != '.' && pg_str_endswith(de->d_name, ".conf"))
		{
			char	   *file = psprintf("%s/%s", path, de->d_name);

			read_config(file, true, depth);
			pfree(file);
		}
	}
	if (errno)
		pg_fatal("could not read directory \"%s\": %m", path);
	closedir(dir);
}

/*
 * Follow an include directive; paths are relative to the file that has it.
 */
static void
follow_include(const char *from, const char *directive, const char *target, int depth)
{
	char		path[MAXPGPATH];

	if (is_absolute_path(target))
		strlcpy(path, target, sizeof(path));
	else
	{
		strlcpy(path, from, sizeof(path));
		get_parent_directory(path);
		join_path_components(path, path[0] ? path : ".", target);
	}
	if (pg_strcasecmp(directive, "include_dir") == 0)
		read_config_directory(path, depth);
	else
		read_config(path, pg_strcasecmp(directive, "include") == 0, depth);
}

/*
 * Note a setting that stock does not know, or not with this value.  The string
 * place is the list's now.
 */
static void
note_setting(char *place, const char *name, const char *value, const char *todo)
{
	if (is_ours(name))
		note_left("setting", place, pg_strdup(name), true, pg_strdup(todo));
	else if (pg_strcasecmp(name, "checkpoint_timeout") == 0 &&
			 seconds_of(value) >= 0 && seconds_of(value) < STOCK_MIN_CHECKPOINT_TIMEOUT)
		note_left("setting", place, psprintf("checkpoint_timeout = %s", value), true,
				  psprintf(_("set it to %d seconds or more"), STOCK_MIN_CHECKPOINT_TIMEOUT));
}

static void
read_config_line(const char *path, int lineno, char *line, int depth)
{
	char	   *name;
	char	   *value;

	if (!parse_line(line, &name, &value))
		return;
	if (pg_strncasecmp(name, "include", strlen("include")) == 0)
		follow_include(path, name, value, depth);
	else
		note_setting(psprintf("%s:%d", path, lineno), name, value, _("remove the line"));
}

static void
read_config(const char *path, bool must_exist, int depth)
{
	FILE	   *fp;
	StringInfoData line;
	int			lineno = 0;

	if (depth > CONF_FILE_MAX_DEPTH)
		pg_fatal("could not open file \"%s\": configuration files are nested too deeply", path);
	fp = fopen(path, "r");
	if (fp == NULL)
	{
		if (errno == ENOENT && !must_exist)
			return;
		pg_fatal("could not open file \"%s\": %m", path);
	}
	initStringInfo(&line);
	while (pg_get_line_buf(fp, &line))
		read_config_line(path, ++lineno, line.data, depth + 1);
	if (ferror(fp))
		pg_fatal("could not read file \"%s\": %m", path);
	pfree(line.data);
	fclose(fp);
}

/*
 * A setting as the command line has it, which may write it with dashes.
 * Overwrites it.
 */
static void
read_argument(char *name, char *config_file)
{
	char	   *value = strchr(name, '=');

	if (value == NULL)
		return;
	*value++ = '\0';
	for (char *p = name; *p != '\0'; p++)
	{
		if (*p == '-')
			*p = '_';
	}
	if (pg_strcasecmp(name, "config_file") != 0)
		note_setting(pg_strdup("postmaster.opts"), name, value,
					 _("start stock without it"));
	else if (config_file[0] == '\0')
		strlcpy(config_file, value, MAXPGPATH);
}

/*
 * What the last start of the server was given on its command line.  It may
 * name a configuration file elsewhere, as Debian's packages do.
 *
 * The server has put each argument between quotes, whatever is in it.
 */
static void
read_command_line(char *config_file)
{
	FILE	   *fp = fopen("postmaster.opts", "r");
	StringInfoData line;
	bool		setting = false;	/* comes next */

	if (fp == NULL)
		return;
	initStringInfo(&line);
	if (pg_get_line_buf(fp, &line))
	{
		char	   *word = strstr(line.data, " \"");

		pg_strip_crlf(line.data);
		while (word != NULL)
		{
			char	   *next = strstr(word += 2, "\" \"");

			if (next != NULL)
				*next++ = '\0';
			else if (word[0] != '\0')
				word[strlen(word) - 1] = '\0';
			if (setting)
				read_argument(word, config_file);
			else if (strncmp(word, "--", 2) == 0 ||
					 (strncmp(word, "-c", 2) == 0 && word[2] != '\0'))
				read_argument(word + 2, config_file);
			setting = !setting && strcmp(word, "-c") == 0;
			word = next;
		}
	}
	pfree(line.data);
	fclose(fp);
}

/* ---------------------------------------------------------------------
 * Files
 * ---------------------------------------------------------------------
 */

static void
look_for_files(const DWToolLogState *state)
{
	if (state->pid == 0 && state->start.label == DW_LABEL_MARKER)
		note_left("file", pg_strdup(DW_MARKER_FILE), pg_strdup(_("the log is in use")), true,
				  pg_strdup(_("start this server, and stop it cleanly; do not remove the file")));
	if (state->start.label == DW_LABEL_INVALID)
		note_left("file", pg_strdup(DW_MARKER_FILE),
				  pg_strdup(_("neither the label of a backup nor the file that says that the log is in use")), true,
				  pg_strdup(_("no server starts with it; bring back what was there")));
	if (access(DW_DIR, F_OK) == 0)
	{
		char	   *what = state->linktarget ?
			psprintf(_("log directory, a link to \"%s\""), state->linktarget) :
			pg_strdup(_("log directory"));

		note_left("file", pg_strdup(DW_DIR), what, false,
				  state->pid != 0 ? pg_strdup(_("remove it once the server has been stopped cleanly")) :
				  state->start.label == DW_LABEL_MARKER || state->start.label == DW_LABEL_INVALID ?
				  pg_strdup(_("leave it until then")) :
				  pg_strdup(_("remove it")));
	}
	if (access("recovery_progress", F_OK) == 0)
		note_left("file", pg_strdup("recovery_progress"), pg_strdup(_("figures for monitoring")),
				  false, pg_strdup(_("may be removed")));
}

/* ---------------------------------------------------------------------
 * The running server
 * ---------------------------------------------------------------------
 */

/*
 * Try to connect to a database of the server that runs on the data directory, as it
 * has noted in postmaster.pid.
 */
static PGconn *
connect_to(const char *dbname)
{
	static char port[16];
	static char host[MAXPGPATH];
	const char *keywords[] = {"host", "port", "dbname", "fallback_application_name", "options", NULL};
	const char *values[] = {host, port, dbname, progname,
	"-c default_transaction_read_only=on -c search_path=pg_catalog", NULL};

	if (port[0] == '\0')
	{
		FILE	   *fp = fopen("postmaster.pid", "r");
		StringInfoData line;

		if (fp == NULL)
			pg_fatal("could not open file \"%s\": %m", "postmaster.pid");
		initStringInfo(&line);
		for (int i = 1; pg_get_line_buf(fp, &line); i++)
		{
			pg_strip_crlf(line.data);
			if (i == LOCK_FILE_LINE_PORT)
				strlcpy(port, line.data, sizeof(port));
			else if (i == LOCK_FILE_LINE_SOCKET_DIR)
				strlcpy(host, line.data, sizeof(host));
		}
		if (host[0] == '\0')
			strlcpy(host, "localhost", sizeof(host));
		pfree(line.data);
		fclose(fp);
	}
	return PQconnectdbParams(keywords, values, false);
}

/*
 * Connect to a database in which all others are found, as other programs do.
 */
static PGconn *
connect_to_any(void)
{
	PGconn	   *conn = connect_to("postgres");

	if (PQstatus(conn) != CONNECTION_OK)
	{
		PQfinish(conn);
		conn = connect_to("template1");
	}
	if (PQstatus(conn) != CONNECTION_OK)
		pg_fatal("%s", PQerrorMessage(conn));
	return conn;
}

static PGresult *
ask(PGconn *conn, const char *query)
{
	PGresult   *result = PQexec(conn, query);

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		pg_fatal("query failed: %s", PQerrorMessage(conn));
	return result;
}

/*
 * Our settings as a list of SQL literals.
 */
static char *
settings_list(void)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < lengthof(our_settings); i++)
		appendStringInfo(&list, "%s'%s'", i > 0 ? ", " : "", our_settings[i]);
	return list.data;
}

/*
 * Note each row of a query: place, name, and the statement that helps.
 */
static void
note_rows(PGconn *conn, const char *kind, const char *query)
{
	PGresult   *result = ask(conn, query);

	for (int i = 0; i < PQntuples(result); i++)
		note_left(kind, pg_strdup(PQgetvalue(result, i, 0)), pg_strdup(PQgetvalue(result, i, 1)),
				  false, pg_strdup(PQgetvalue(result, i, 2)));
	PQclear(result);
}

/*
 * Stock starts with what is in the catalogs, but warns at each connection, and
 * fails when a function or a view is used.
 */
static void
look_into_database(const char *dbname)
{
	PGconn	   *conn = connect_to(dbname);

	if (PQstatus(conn) != CONNECTION_OK)
	{
		char	   *message = pg_strdup(PQerrorMessage(conn));

		pg_strip_crlf(message);
		note_left("database", pg_strdup(dbname), message, false,
				  pg_strdup(_("have it accept the connection, and look again")));
		PQfinish(conn);
		return;
	}
	note_rows(conn, "extension",
			  "SELECT current_database(), extname, 'DROP EXTENSION ' || extname"
			  " FROM pg_extension WHERE extname = '" EXTENSION "'");
	note_rows(conn, "function",
			  psprintf("SELECT current_database(), p.oid::regprocedure::text || ': ' || c,"
					   " format('ALTER ROUTINE %%s RESET %%s', p.oid::regprocedure, split_part(c, '=', 1))"
					   " FROM pg_proc p, unnest(p.proconfig) c"
					   " WHERE lower(split_part(c, '=', 1)) IN (%s) ORDER BY 2", settings_list()));
	PQfinish(conn);
}

static void
look_into_catalogs(char *config_file)
{
	PGconn	   *conn = connect_to_any();
	PGresult   *result = ask(conn, "SELECT current_setting('config_file')");

	if (config_file[0] == '\0')
		strlcpy(config_file, PQgetvalue(result, 0, 0), MAXPGPATH);
	PQclear(result);

	note_rows(conn, "role or database",
			  psprintf("SELECT concat_ws(' in ', nullif(r.rolname, ''), d.datname), c,"
					   " concat('ALTER ', CASE WHEN s.setrole <> 0 THEN 'ROLE ' || quote_ident(r.rolname)"
					   " WHEN s.setdatabase = 0 THEN 'ROLE ALL' END,"
					   " CASE WHEN s.setrole <> 0 AND s.setdatabase <> 0 THEN ' IN ' END,"
					   " 'DATABASE ' || quote_ident(d.datname),"
					   " ' RESET ', split_part(c, '=', 1))"
					   " FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole"
					   " LEFT JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) c"
					   " WHERE lower(split_part(c, '=', 1)) IN (%s) ORDER BY 1, 2", settings_list()));
	note_rows(conn, "privilege",
			  psprintf("SELECT DISTINCT coalesce(r.rolname, 'public'), p.parname,"
					   " format('REVOKE ALL ON PARAMETER %%s FROM %%s CASCADE', p.parname,"
					   " coalesce(quote_ident(r.rolname), 'PUBLIC'))"
					   " FROM pg_parameter_acl p, aclexplode(p.paracl) a"
					   " LEFT JOIN pg_roles r ON r.oid = a.grantee"
					   " WHERE a.grantee <> %d AND p.parname IN (%s) ORDER BY 1, 2",
					   BOOTSTRAP_SUPERUSERID, settings_list()));
	note_rows(conn, "database",
			  "SELECT datname, CASE datconnlimit"
			  " WHEN -2 THEN 'invalid, as it has been dropped in part'"
			  " ELSE 'cannot be looked into, as it allows no connections' END,"
			  " CASE datconnlimit WHEN -2 THEN 'DROP DATABASE ' || quote_ident(datname)"
			  " ELSE 'allow connections to it, and look again' END"
			  " FROM pg_database WHERE (NOT datallowconn OR datconnlimit = -2)"
			  " AND datname <> 'template0' ORDER BY 1");
	result = ask(conn, "SELECT datname FROM pg_database"
				 " WHERE datallowconn AND datconnlimit <> -2 ORDER BY 1");
	for (int i = 0; i < PQntuples(result); i++)
		look_into_database(PQgetvalue(result, i, 0));
	PQclear(result);
	PQfinish(conn);
}

/* ---------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------
 */

static void
print_text(const DWToolLogState *state, bool stops)
{
	for (const struct Left *left = first_left; left != NULL; left = left->next)
		printf("%s %s: %s; %s\n", _(left->kind), left->place, left->name, left->todo);
	if (first_left != NULL)
		printf("\n");
	if (state->pid != 0)
		printf(_("The server is running: stop it cleanly, and look again.\n"));
	else if (stops)
		printf(_("Stock PostgreSQL would not start.\n"));
	else
		printf(_("Stock PostgreSQL would start.\n"));
	if (state->pid == 0)
		printf(_("Roles, functions and extensions were not looked for: that needs a running server.\n"));
}

static void
print_json(const DWToolLogState *state, bool stops)
{
	json_open_object(NULL);
	json_bool("server_running", state->pid != 0);
	json_bool("catalogs_seen", state->pid != 0);
	json_bool("stock_would_start", state->pid == 0 && !stops);
	json_open_array("left");
	for (const struct Left *left = first_left; left != NULL; left = left->next)
	{
		json_open_object(NULL);
		json_string("kind", left->kind);
		json_string("place", left->place);
		json_string("name", left->name);
		json_bool("stops_stock", left->stops);
		json_string("todo", left->todo);
		json_close();
	}
	json_close();
	json_close();
}

/*
 * Print what is left; returns whether stock would start now.
 */
bool
print_leave(const DWToolLogState *state, const char *config_file,
			const DWToolOptions *options)
{
	char		path[MAXPGPATH] = "";
	bool		stops = false;

	if (config_file != NULL)
		strlcpy(path, config_file, sizeof(path));
	look_for_files(state);
	read_command_line(path);
	if (state->pid != 0)
		look_into_catalogs(path);
	if (path[0] == '\0')
		strlcpy(path, "postgresql.conf", sizeof(path));
	if (access(path, F_OK) < 0)
	{
		pg_log_error("could not open file \"%s\": %m", path);
		pg_log_error_hint("Say where it is with --config-file.");
		exit(1);
	}
	read_config(path, true, 0);
	read_config("postgresql.auto.conf", false, 0);

	for (const struct Left *left = first_left; left != NULL; left = left->next)
		stops |= left->stops;
	if (options->json)
		print_json(state, stops);
	else
		print_text(state, stops);
	return state->pid == 0 && !stops;
}
