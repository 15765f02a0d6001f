package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/run"
)

const (
	currentName   = "current"
	genPrefix     = "gen-"
	partialSuffix = ".partial"
)

// PruneError says that a generation was committed but older ones could not be removed.
type PruneError struct{ Err error }

func (e *PruneError) Error() string { return "remove old pool generations: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *PruneError) Unwrap() error { return e.Err }

// GenerationDir is the folder that WriteGeneration makes for tests that began at that
// moment; what is written into its files may name it.
func GenerationDir(poolDir string, began time.Time) string {
	return filepath.Join(poolDir, genPrefix+strconv.FormatInt(began.UnixNano(), 10))
}

// CurrentGeneration returns the folder that the pool files lead to now. Read all of them
// through it to see one generation. Without one the error wraps fs.ErrNotExist.
func CurrentGeneration(poolDir string) (string, error) {
	target, err := os.Readlink(filepath.Join(poolDir, currentName))
	if err != nil {
		return "", fmt.Errorf("pool folder %s: current: %w", poolDir, bare(err))
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(poolDir, target)
	}
	return target, nil
}

// WriteGeneration writes the files of one refresh (relative name -> content) into
// poolDir/gen-NANOSECONDS and then makes them the valid ones by swapping one symlink,
// poolDir/current: at no instant does a reader find some of them new and others old.
//
// The files of mtimeNames are the pool files: each gets began, when the tests began, as its
// mtime, and poolDir/NAME leads to it through current. Files in folders, the profiles, get
// mode 0600. Of older generations the newest are kept, keep in all, and each that holds one
// of keepPaths. The caller holds the lock "pool".
//
// A *PruneError comes after the commit: dir is valid. With any other error nothing changed
// for readers, unless the disk refused the very last fsync.
func WriteGeneration(
	ctx context.Context, poolDir string, began time.Time, files map[string][]byte,
	mtimeNames []string, keep int, keepPaths []string,
) (dir string, err error) {
	if err := checkGeneration(files, mtimeNames); err != nil {
		return "", fmt.Errorf("pool generation: %w", err)
	}
	g := generation{poolDir: poolDir, began: began, files: files, names: mtimeNames, dir: GenerationDir(poolDir, began)}
	if err := makeDir(poolDir); err != nil {
		return "", fmt.Errorf("pool generation: %w", err)
	}
	for _, step := range []func(context.Context) error{g.adopt, g.write, g.link, g.swap} {
		if err := step(ctx); err != nil {
			return "", fmt.Errorf("pool generation %s: %w", filepath.Base(g.dir), err)
		}
	}
	if err := errors.Join(g.touchLinks(), g.prune(ctx, keep, keepPaths)); err != nil {
		return g.dir, &PruneError{err}
	}
	return g.dir, nil
}

func checkGeneration(files map[string][]byte, mtimeNames []string) error {
	if len(mtimeNames) == 0 {
		return errors.New("no pool file")
	}
	for name := range files {
		if !filepath.IsLocal(name) || filepath.Clean(name) != name || strings.HasPrefix(name, ".") {
			return fmt.Errorf("file %q: want a relative name", name)
		}
	}
	for _, name := range mtimeNames {
		if _, ok := files[name]; !ok || name != filepath.Base(name) {
			return fmt.Errorf("pool file %q: not among the files", name)
		}
		if name == currentName || strings.HasPrefix(name, genPrefix) {
			return fmt.Errorf("pool file %q: the name is taken", name)
		}
	}
	return nil
}

type generation struct {
	poolDir string
	began   time.Time
	files   map[string][]byte
	names   []string // of pool files
	dir     string
}

// write makes the folder with everything in it durable, under its own name but unused.
func (g *generation) write(ctx context.Context) error {
	if current, err := CurrentGeneration(g.poolDir); err == nil && filepath.Base(current) == filepath.Base(g.dir) {
		return errors.New("is the current one already")
	}
	// By a run that was killed between this step and the swap.
	if err := os.RemoveAll(g.dir); err != nil {
		return err
	}
	times := make(map[string]time.Time, len(g.names))
	for _, name := range g.names {
		times[name] = g.began
	}
	return buildDir(ctx, g.dir, g.files, times)
}

// buildDir writes a folder beside its place and renames it there when all is on disk.
func buildDir(ctx context.Context, dir string, files map[string][]byte, times map[string]time.Time) (err error) {
	partial := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+partialSuffix)
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(partial)
		}
	}()
	if err := os.Mkdir(partial, dirPerm); err != nil {
		return err
	}
	for name, data := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		path, perm := filepath.Join(partial, name), os.FileMode(filePerm)
		if sub := filepath.Dir(path); sub != partial {
			perm = 0o600
			if err := os.MkdirAll(sub, 0o700); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, data, perm); err != nil {
			return err
		}
		if t, ok := times[name]; ok {
			if err := os.Chtimes(path, t, t); err != nil {
				return err
			}
		}
	}
	run.Point(ctx, "generation.prepared")
	// One syncfs instead of an fsync for each of a thousand profiles.
	if err := syncFS(partial); err != nil {
		return err
	}
	if err := os.Rename(partial, dir); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	run.Point(ctx, "generation.written")
	return nil
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(f.Fd()))
	return errors.Join(err, f.Close())
}

// adopt turns pool files that are not ours yet (plain files, or symlinks to elsewhere, of
// another program or a hand) into a generation with the same content, so that the swap
// can replace them all at once.
func (g *generation) adopt(ctx context.Context) error {
	files, times := map[string][]byte{}, map[string]time.Time{}
	var foreign []string
	newest := time.Unix(0, 0)
	for _, name := range g.names {
		path := filepath.Join(g.poolDir, name)
		target, err := os.Readlink(path)
		ours := err == nil && target == g.target(name)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		fi, err := os.Stat(path)
		if err != nil {
			return err
		}
		files[name], times[name] = data, fi.ModTime()
		if fi.ModTime().After(newest) {
			newest = fi.ModTime()
		}
		if !ours {
			foreign = append(foreign, name)
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	dir := GenerationDir(g.poolDir, newest)
	for n := int64(1); ; n++ {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) && dir != g.dir {
			break
		}
		dir = GenerationDir(g.poolDir, newest.Add(time.Duration(n)))
	}
	if err := buildDir(ctx, dir, files, times); err != nil {
		return fmt.Errorf("adopt %s: %w", strings.Join(foreign, ", "), err)
	}
	if err := g.point(ctx, currentName, filepath.Base(dir)); err != nil {
		return err
	}
	run.Point(ctx, "generation.adopted")
	return g.link(ctx)
}

// target is what a pool file's symlink says.
func (g *generation) target(name string) string { return filepath.Join(currentName, name) }

// link makes the pool files lead through current. Before the first swap they lead nowhere,
// which is what a missing pool is.
func (g *generation) link(ctx context.Context) error {
	for _, name := range g.names {
		have, err := os.Readlink(filepath.Join(g.poolDir, name))
		if err == nil && have == g.target(name) {
			continue
		}
		if err := g.point(ctx, name, g.target(name)); err != nil {
			return err
		}
		run.Point(ctx, "generation.linked")
	}
	return nil
}

func (g *generation) swap(ctx context.Context) error {
	if err := g.point(ctx, currentName, filepath.Base(g.dir)); err != nil {
		return err
	}
	run.Point(ctx, "generation.swapped")
	return nil
}

// point makes the symlink poolDir/name say target, in one rename.
func (g *generation) point(ctx context.Context, name, target string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tmp := filepath.Join(g.poolDir, "."+name+partialSuffix)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(g.poolDir, name)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(g.poolDir)
}

// touchLinks gives the symlinks themselves the mtime too, for scripts whose stat does not
// follow them. After the swap: a link may look older than its content, never newer.
func (g *generation) touchLinks() error {
	ts, err := unix.TimeToTimespec(g.began)
	if err != nil {
		return err
	}
	for _, name := range g.names {
		path := filepath.Join(g.poolDir, name)
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("mtime of %s: %w", path, err)
		}
	}
	return nil
}

// prune removes old generations and what killed writers left.
func (g *generation) prune(ctx context.Context, keep int, keepPaths []string) error {
	entries, err := os.ReadDir(g.poolDir)
	if err != nil {
		return err
	}
	var gens []int64
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") && strings.HasSuffix(name, partialSuffix) {
			errs = append(errs, os.RemoveAll(filepath.Join(g.poolDir, name)))
			continue
		}
		digits, ok := strings.CutPrefix(name, genPrefix)
		if n, err := strconv.ParseInt(digits, 10, 64); ok && err == nil && e.IsDir() {
			gens = append(gens, n)
		}
	}
	slices.Sort(gens)
	slices.Reverse(gens)
	used := g.inUse(keepPaths)
	kept := 1 // the current one
	for _, n := range gens {
		dir := filepath.Join(g.poolDir, genPrefix+strconv.FormatInt(n, 10))
		if dir == filepath.Clean(g.dir) {
			continue
		}
		if kept < keep || used[filepath.Base(dir)] {
			kept++
			continue
		}
		errs = append(errs, os.RemoveAll(dir))
		run.Point(ctx, "generation.pruned")
	}
	return errors.Join(errs...)
}

// inUse names the generations that paths point into, as written and with symlinks followed.
func (g *generation) inUse(paths []string) map[string]bool {
	used := map[string]bool{}
	roots := []string{g.poolDir}
	if real, err := filepath.EvalSymlinks(g.poolDir); err == nil {
		roots = append(roots, real)
	}
	for _, p := range paths {
		forms := []string{p}
		if real, err := filepath.EvalSymlinks(p); err == nil {
			forms = append(forms, real)
		}
		for _, root := range roots {
			for _, form := range forms {
				if rel, err := filepath.Rel(root, form); err == nil {
					first, _, _ := strings.Cut(rel, "/")
					used[first] = true
				}
			}
		}
	}
	return used
}
