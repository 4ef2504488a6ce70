package sqlstore

import (
	"archive/zip"
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
)

// SchemaVersion is the newest version of the schema, the number of the last file of
// [Migrations]. Version 1 is the table of records; 2 adds the view <table>_readable, and the
// table <table>_version, which has the numbers of the files that were applied.
const SchemaVersion = 2

//go:embed migrations
var migrations embed.FS

// Migrations are the files that make the schema, one a version, for those who have a tool
// for that: what goose, golang-migrate and atlas take. The table is named as in
// Config.Table; empty: the default.
//
//	00001_records.up.sql
//	00002_readable.up.sql
//
// There are no files back: dropping the table would have every event handled again.
// [Store.Migrate] applies the same files, and goes on where a tool has stopped, and the
// other way round: all of them can be applied again. golang-migrate needs
// multiStatements=true for MySQL.
func Migrations(dialect Dialect, table string) (fs.FS, error) {
	files, err := files(dialect, table)
	if err != nil {
		return nil, err
	}
	// A zip archive is the standard library's file system of what is made at run time.
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, f := range files {
		into, err := w.CreateHeader(&zip.FileHeader{Name: f.name, Method: zip.Store})
		if err == nil {
			_, err = into.Write([]byte(f.text))
		}
		if err != nil {
			return nil, fmt.Errorf("sqlstore: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	return zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len()))
}

// Schema is the text of all files up to a version, for a new table. 0 is the newest.
func Schema(dialect Dialect, table string, version int) (string, error) {
	files, err := files(dialect, table)
	if err != nil {
		return "", err
	}
	if version == 0 {
		version = len(files)
	}
	if version < 1 || version > len(files) {
		return "", fmt.Errorf("sqlstore: %w: there is no version %d of the schema; the newest is %d", dedupe.ErrInvalid, version, len(files))
	}
	var text strings.Builder
	for _, f := range files[:version] {
		text.WriteString(f.text)
	}
	return text.String(), nil
}

// file is one migration. Its number is its place, from 1 on.
type file struct{ name, text string }

// files are the migrations for a table; tests compare their names with their places.
func files(dialect Dialect, table string) ([]file, error) {
	if table == "" {
		table = DefaultTable
	}
	if err := checkTable(table); err != nil {
		return nil, fmt.Errorf("sqlstore: %w: %w", dedupe.ErrInvalid, err)
	}
	if !sqlrecord.IsDialect(string(dialect)) {
		return nil, fmt.Errorf("sqlstore: %w: dialect %q is unknown", dedupe.ErrInvalid, dialect)
	}
	schema, plain, qualified := strings.Cut(table, ".")
	index := strings.ReplaceAll(table, ".", "_") + "_expires"
	if !qualified {
		plain = table
	} else if dialect == SQLite { // there the index has the schema, and what it is on has none
		index = schema + "." + plain + "_expires"
	}
	names := strings.NewReplacer("{table}", table, "{plain}", plain, "{index}", index)
	folder := path.Join("migrations", string(dialect))
	entries, err := migrations.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	var all []file
	for _, e := range entries { // in the order of their names
		text, err := migrations.ReadFile(path.Join(folder, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("sqlstore: %w", err)
		}
		all = append(all, file{e.Name(), names.Replace(string(text))})
	}
	return all, nil
}

// statements are those of a file, one by one: not all drivers take several at a time.
func (f file) statements() (all []string) {
	for part := range strings.SplitSeq(stripComments(f.text), ";") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

func stripComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "--")
		b.WriteString(strings.TrimRight(line, " \n"))
		b.WriteByte('\n')
	}
	return b.String()
}
