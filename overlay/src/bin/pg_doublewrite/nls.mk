# src/bin/pg_doublewrite/nls.mk
CATALOG_NAME     = pg_doublewrite
GETTEXT_FILES    = $(FRONTEND_COMMON_GETTEXT_FILES) \
                   crash.c \
                   dryrun.c \
                   json.c \
                   leave.c \
                   list.c \
                   pg_doublewrite.c \
                   readlog.c \
                   storage.c \
                   ../../common/controldata_utils.c \
                   ../../common/doublewrite_scan.c \
                   ../../common/fe_memutils.c
GETTEXT_TRIGGERS = $(FRONTEND_COMMON_GETTEXT_TRIGGERS)
GETTEXT_FLAGS    = $(FRONTEND_COMMON_GETTEXT_FLAGS)
