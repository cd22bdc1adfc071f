#!/bin/sh
# Whether the database of the compose file works: logs in over TCP and asks. The image's first start runs a server on a
# socket alone, which pg_isready would already call ready; this one does not.
set -eu
PGPASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
export PGPASSWORD PGCONNECT_TIMEOUT=3
answer=$(psql -X -A -t -h 127.0.0.1 -p "${PGPORT:-5432}" -U "$POSTGRES_USER" -d "$POSTGRES_DB" -c "select 40 + 2")
test "$answer" = 42
