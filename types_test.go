package idempotent_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Limits of a type. The linter holds those of functions and files (funlen, gocyclo,
// revive), and has none for types: small files hide large ones.
const (
	maxFields      = 20
	maxFlags       = 5 // fields of type bool: what excludes each other is one enumeration
	maxMethods     = 25
	maxMethodFiles = 3
)

type size struct {
	fields, flags, methods int
	files                  map[string]bool
}

// A type is small enough to be read as a whole. Records that users fill in or receive
// (configurations, events, reports) may have more fields, and what users call more methods.
func TestTypesAreSmall(t *testing.T) {
	documents(t) // skips where there is no checkout
	sizes := make(map[string]*size)
	of := func(name string) *size {
		if sizes[name] == nil {
			sizes[name] = &size{files: make(map[string]bool)}
		}
		return sizes[name]
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "examples" || d.Name() == "tests"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			addSize(decl, path, of)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(sizes) < 100 {
		t.Fatalf("found %d types", len(sizes))
	}
	for name, s := range sizes {
		short := name[strings.LastIndex(name, ".")+1:]
		if n := s.fields; n > maxFields && !isRecord(short) {
			t.Errorf("%s has %d fields, more than %d", name, n, maxFields)
		}
		if n := s.flags; n > maxFlags {
			t.Errorf("%s has %d fields of type bool, more than %d", name, n, maxFlags)
		}
		if ast.IsExported(short) {
			continue
		}
		if n := s.methods; n > maxMethods {
			t.Errorf("%s has %d methods, more than %d", name, n, maxMethods)
		}
		if n := len(s.files); n > maxMethodFiles {
			t.Errorf("%s has its methods in %d files, more than %d", name, n, maxMethodFiles)
		}
	}
}

func isRecord(name string) bool {
	for _, suffix := range []string{"Config", "Hooks", "Event", "Receipt", "Report"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// addSize adds what a declaration has to the sizes of types, by folder and name.
func addSize(decl ast.Decl, path string, of func(name string) *size) {
	prefix := filepath.Dir(path) + "."
	switch decl := decl.(type) {
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			ts, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			s := of(prefix + ts.Name.Name)
			if st, ok := ts.Type.(*ast.StructType); ok {
				for _, field := range st.Fields.List {
					n := max(len(field.Names), 1)
					s.fields += n
					if id, ok := field.Type.(*ast.Ident); ok && id.Name == "bool" {
						s.flags += n
					}
				}
			}
		}
	case *ast.FuncDecl:
		if decl.Recv == nil {
			return
		}
		receiver := decl.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
		}
		if generic, ok := receiver.(*ast.IndexExpr); ok {
			receiver = generic.X
		}
		if id, ok := receiver.(*ast.Ident); ok {
			s := of(prefix + id.Name)
			s.methods++
			s.files[filepath.Base(path)] = true
		}
	}
}
