/*-------------------------------------------------------------------------
 *
 * pg_doublewrite.c
 *	  Show and check the double-write log of a database cluster, say what a
 *	  server would do with it, what the storage promises, and what is in the
 *	  way of stock PostgreSQL; bring a page of a standby from its primary.
 *
 * Only `fetch-page` changes anything; `storage` writes, too, but to a temporary
 * file of its own, which has no name, or none for long.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/pg_doublewrite.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "common/logging.h"
#include "common/string.h"
#include "fe_utils/option_utils.h"
#include "getopt_long.h"
#include "pg_doublewrite.h"

typedef enum Command
{
	COMMAND_STATE,
	COMMAND_LIST,
	COMMAND_CHECK,
	COMMAND_DRY_RUN,
	COMMAND_STORAGE,
	COMMAND_LEAVE,
	COMMAND_FETCH_PAGE,
} Command;

static const char *const command_names[] = {
	[COMMAND_STATE] = "state",
	[COMMAND_LIST] = "list",
	[COMMAND_CHECK] = "check",
	[COMMAND_DRY_RUN] = "dry-run",
	[COMMAND_STORAGE] = "storage",
	[COMMAND_LEAVE] = "leave",
	[COMMAND_FETCH_PAGE] = "fetch-page",
};

const char *progname;

static void
usage(const char *progname)
{
	printf(_("%s shows and checks the double-write log of a PostgreSQL database cluster.\n\n"), progname);
	printf(_("Usage:\n"));
	printf(_("  %s [COMMAND] [OPTION]... [DATADIR]\n"), progname);
	printf(_("\nCommands:\n"));
	printf(_("  state                  state of the log, and what a server would do (default)\n"));
	printf(_("  list                   also list batches, and pages by file\n"));
	printf(_("  check                  say what is wrong with the log, if anything\n"));
	printf(_("  dry-run                say which pages a server would restore\n"));
	printf(_("  storage                say what the storage promises about page writes\n"));
	printf(_("  leave                  say what to remove before stock PostgreSQL starts\n"));
	printf(_("  fetch-page             put a page of the primary in the place of one of a standby\n"));
	printf(_("\nOptions:\n"));
	printf(_(" [-D, --pgdata=]DATADIR  data directory\n"));
	printf(_("  -b, --block=NUMBER     block that fetch-page brings\n"));
	printf(_("  -c, --config-file=FILE  where leave finds postgresql.conf, if not in DATADIR\n"));
	printf(_("  -d, --log-directory=DIR  read this log alone, without a data directory\n"));
	printf(_("  -f, --force            dry run though a server seems to be running; fetch-page\n"
			 "                         though the checksum of the page is right\n"));
	printf(_("  -j, --json             write JSON\n"));
	printf(_("  -N, --no-sync-test     do not write to measure the cost of a sync\n"));
	printf(_("  -p, --pages            list pages one by one\n"));
	printf(_("  -r, --relation=PATH    relation of that block, as in the server's message\n"));
	printf(_("  -s, --seconds=SECS     length of each measurement (default: 1)\n"));
	printf(_("  -S, --source-server=CONNSTR  primary to fetch it from\n"));
	printf(_("  -V, --version          output version information, then exit\n"));
	printf(_("  -?, --help             show this help, then exit\n"));
	printf(_("\nIf no data directory (DATADIR) is specified, "
			 "the environment variable PGDATA\nis used.\n"));
	printf(_("Exit status is 0 if a server could use the log, 1 after an error, 2 if a server\n"
			 "would refuse to start; of leave: if stock PostgreSQL would, or the server runs.\n\n"));
	printf(_("Report bugs to <%s>.\n"), PACKAGE_BUGREPORT);
	printf(_("%s home page: <%s>\n"), PACKAGE_NAME, PACKAGE_URL);
}

pg_noreturn static void
usage_error(void)
{
	pg_log_error_hint("Try \"%s --help\" for more information.", progname);
	exit(1);
}

/*
 * If the word is a command, set *command and return true.
 */
static bool
parse_command(const char *word, Command *command)
{
	for (int i = 0; i < lengthof(command_names); i++)
	{
		if (strcmp(word, command_names[i]) == 0)
		{
			*command = (Command) i;
			return true;
		}
	}
	return false;
}

/*
 * The log of a running server changes while it is being read.
 */
static void
mind_running_server(const DWToolLogState *state, Command command, bool force)
{
	if (state->pid == 0)
		return;
	if (command == COMMAND_DRY_RUN && !force)
	{
		pg_log_error("a server seems to be running on data directory \"%s\" with process ID %ld",
					 state->datadir, state->pid);
		pg_log_error_hint("A dry run says what a server would do after a crash.  If that process is none of a server, use --force.");
		exit(1);
	}
	pg_log_warning("a server seems to be running with process ID %ld; its log changes while it is read",
				   state->pid);
}

int
main(int argc, char **argv)
{
	static struct option long_options[] = {
		{"pgdata", required_argument, NULL, 'D'},
		{"block", required_argument, NULL, 'b'},
		{"config-file", required_argument, NULL, 'c'},
		{"log-directory", required_argument, NULL, 'd'},
		{"force", no_argument, NULL, 'f'},
		{"json", no_argument, NULL, 'j'},
		{"no-sync-test", no_argument, NULL, 'N'},
		{"pages", no_argument, NULL, 'p'},
		{"relation", required_argument, NULL, 'r'},
		{"seconds", required_argument, NULL, 's'},
		{"source-server", required_argument, NULL, 'S'},
		{NULL, 0, NULL, 0}
	};
	Command		command = COMMAND_STATE;
	DWToolOptions options = {0};
	DWToolLogState state = {0};
	char	   *datadir = NULL;
	char	   *logdir = NULL;
	char	   *config_file = NULL;
	char	   *relation = NULL;
	char	   *block = NULL;
	char	   *source = NULL;
	bool		force = false;
	bool		sync_test = true;
	int			seconds = 1;
	int			status = 0;
	int			c;

	pg_logging_init(argv[0]);
	set_pglocale_pgservice(argv[0], PG_TEXTDOMAIN("pg_doublewrite"));
	progname = get_progname(argv[0]);
	handle_help_version_opts(argc, argv, "pg_doublewrite", usage);

	while ((c = getopt_long(argc, argv, "b:c:D:d:fjNpr:s:S:", long_options, NULL)) != -1)
	{
		switch (c)
		{
			case 'D':
				datadir = optarg;
				break;
			case 'b':
				block = optarg;
				break;
			case 'c':
				config_file = make_absolute_path(optarg);
				break;
			case 'd':
				logdir = optarg;
				break;
			case 'f':
				force = true;
				break;
			case 'j':
				options.json = true;
				break;
			case 'N':
				sync_test = false;
				break;
			case 'p':
				options.pages = true;
				break;
			case 'r':
				relation = optarg;
				break;
			case 'S':
				source = optarg;
				break;
			case 's':
				if (!option_parse_int(optarg, "-s/--seconds", 1, 60, &seconds))
					exit(1);
				break;
			default:
				/* getopt already emitted a complaint */
				usage_error();
		}
	}

	if (optind < argc && parse_command(argv[optind], &command))
		optind++;
	if (optind < argc && datadir == NULL)
		datadir = argv[optind++];
	if (optind < argc)
	{
		pg_log_error("too many command-line arguments (first is \"%s\")",
					 argv[optind]);
		usage_error();
	}

	if (datadir == NULL && logdir == NULL)
		datadir = getenv("PGDATA");
	if (datadir == NULL && logdir == NULL)
	{
		pg_log_error("no data directory specified");
		usage_error();
	}
	if (logdir != NULL && datadir != NULL)
	{
		pg_log_error("cannot specify both %s and %s", "a data directory",
					 "--log-directory");
		usage_error();
	}
	if (datadir == NULL &&
		(command == COMMAND_DRY_RUN || command == COMMAND_STORAGE ||
		 command == COMMAND_LEAVE || command == COMMAND_FETCH_PAGE))
	{
		pg_log_error("command \"%s\" needs a data directory",
					 command_names[command]);
		usage_error();
	}

	if (command == COMMAND_FETCH_PAGE &&
		(relation == NULL || block == NULL || source == NULL))
	{
		pg_log_error("command \"%s\" needs %s", command_names[command],
					 "--relation, --block and --source-server");
		usage_error();
	}

	if (command != COMMAND_STORAGE && command != COMMAND_FETCH_PAGE)
	{
		read_log(&state, datadir, logdir);
		if (command != COMMAND_LEAVE)
			mind_running_server(&state, command, force);
		status = state.verdict == VERDICT_REFUSE ? EXIT_REFUSED : 0;
	}
	switch (command)
	{
		case COMMAND_STATE:
			print_state(&state, &options);
			break;
		case COMMAND_LIST:
			print_list(&state, &options);
			break;
		case COMMAND_CHECK:
			print_check(&state, &options);
			break;
		case COMMAND_DRY_RUN:
			dry_run(&state, &options);
			break;
		case COMMAND_STORAGE:
			test_storage(datadir, &options, seconds, sync_test);
			break;
		case COMMAND_LEAVE:
			status = print_leave(&state, config_file, &options) ? 0 : EXIT_REFUSED;
			break;
		case COMMAND_FETCH_PAGE:
			fetch_page(datadir, source, relation, block, force);
			break;
	}
	if (fflush(stdout) != 0)
		pg_fatal("could not write to output: %m");
	return status;
}
