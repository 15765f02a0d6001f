// Package run starts outside commands under a deadline and marks the instants of a pass
// at which a crash must be survivable.
package run

import "context"

type pointsKey struct{}

// WithPoints returns a context under which every Point calls hit with the point's name.
// hit runs in the goroutine that reached the point and may never return.
func WithPoints(ctx context.Context, hit func(name string)) context.Context {
	return context.WithValue(ctx, pointsKey{}, hit)
}

// Point says that a durable write or a change of the kernel was just completed. Names read
// "noun.verb", for example "file.written". Without WithPoints it does nothing.
func Point(ctx context.Context, name string) {
	if hit, ok := ctx.Value(pointsKey{}).(func(string)); ok && hit != nil {
		hit(name)
	}
}
