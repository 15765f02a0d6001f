package state

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func BenchmarkAppendQuarantine(b *testing.B) {
	d, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		q := quarantinedC()
		q.FailedAt = at(int64(i))
		if err := d.AppendQuarantine(b.Context(), q); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNextSeq(b *testing.B) {
	d, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := d.NextSeq(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHolder(b *testing.B) {
	d, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	l, err := d.Lock(b.Context(), "watchdog", "bench", 0)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Unlock() }()
	for b.Loop() {
		if d.Holder("watchdog") == "" {
			b.Fatal("nobody")
		}
	}
}

func BenchmarkWriteGenerationOf1000Profiles(b *testing.B) {
	files := poolFiles("A")
	for i := range 1000 {
		files[fmt.Sprintf("conf/%d.conf", i)] = make([]byte, 600)
	}
	dir := filepath.Join(b.TempDir(), "pools")
	for i := 0; b.Loop(); i++ {
		if _, err := WriteGeneration(b.Context(), dir, time.Unix(int64(i), 1), files, poolNames(), 7, nil); err != nil {
			b.Fatal(err)
		}
	}
}
