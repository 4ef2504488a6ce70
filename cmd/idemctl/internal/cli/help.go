package cli

// What `idemctl --help` says above the list of commands: the way from a question to a
// command, for somebody who has never seen the library.
const rootHelp = `idemctl looks at what watermill-idempotent keeps on a server: topics, the window in
which a repeated publish is recognised, records of handled events, dead letters.

What is the matter?
  Is all well? May my user do what it must?  idemctl check TOPIC
  Which topics are there? How do they fare?  idemctl topic list
                                             idemctl topic show TOPIC
  Why does the stream have duplicates?       idemctl duplicates TOPIC
  How large should the window be?            idemctl window TOPIC --for 10m
  Was an event handled? By whom?             idemctl key get NAMESPACE EVENT
  A handler shall run again for it           idemctl key forget NAMESPACE EVENT
  What could not be handled, and why?        idemctl dead list TOPIC
  Publish a dead letter again                idemctl dead replay TOPIC ID

A TOPIC is the name of a stream in Redis, a NAMESPACE that of the service or consumer
group that handles it, an EVENT the idempotency key of an event, such as pay:9001.

Where? Redis: --redis URL or $IDEMCTL_REDIS. A database with records: --sql DSN or
$IDEMCTL_SQL. See "idemctl help connection".

Commands under "Look" change nothing, the others have --dry-run. Results go to the
standard output, as tables, or with -o json for programs; all else to the standard
error. Exit codes: 0 all is well, 1 something was found or is missing, 2 wrong command
line, 3 a server can't be reached, 4 it refuses. See "idemctl help exit-codes".`

const connectionHelp = `Redis: --redis URL, or the environment variable IDEMCTL_REDIS.

  redis://HOST:PORT
      one server; a node of a cluster is recognised if the user may use INFO,
      else add --cluster
  redis://USER:PASSWORD@HOST:PORT/DB
      with a user and a database number
  rediss://HOST:PORT
      with TLS; ?skip_verify=true does not check the certificate
  unix:///run/redis/redis.sock?db=1
      a socket
  redis://HOST1:PORT?addr=HOST2:PORT&addr=HOST3:PORT
      a cluster, by several of its nodes
  redis://SENTINEL:PORT?master_name=NAME
      behind Sentinel; user and password of the URL are Sentinel's, those of
      Redis are &username=USER&password=PASSWORD

More parameters are those of go-redis, such as read_timeout=3s.

Databases with records of handled events (sqlstore, pgxstore): --sql DSN, or IDEMCTL_SQL.

  postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=require
  mysql://USER:PASSWORD@HOST:PORT/DATABASE
  USER:PASSWORD@tcp(HOST:PORT)/DATABASE
  sqlite:FILE

--table (IDEMCTL_TABLE) and --prefix (IDEMCTL_PREFIX) are the Table of sqlstore.Config and
the Prefix of redisstore.Config, if the service sets them.

Passwords: what stands on a command line is in the shell's history and in the list of
processes. Put the address into the environment variable instead. Nothing that idemctl
writes has a password in it.

--timeout bounds each connection and reply, not the whole command: a list of a large
server takes its time. Ctrl-C ends a command, which then says how far it has come.`

const exitHelp = `The exit code of every command:

  0    all is done, and nothing was found wrong
  1    something was found or is missing: check found a problem, duplicates
       found some, the window is too small; the record, topic, latch or dead
       letter is not there; a replay could not do all of it; you said no
  2    the command line is wrong, or a confirmation is missing (--yes);
       nothing was done
  3    the server or the database can't be reached, or did not answer in time
  4    it answered and refused: a missing right, a wrong password, a missing
       table, a command that it does not know
  130  you pressed Ctrl-C; what was done before was said

A list that is empty is no fault: it ends with 0.`
