package notify

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// failure is why an alert was not delivered, in words of ours.
type failure struct {
	what  string
	again bool // another attempt may help
}

func (f *failure) Error() string { return f.what }

// answered judges a status of HTTP that is none of success.
func answered(status int) *failure {
	return &failure{"answered status " + strconv.Itoa(status), status == 408 || status == 429 || status >= 500}
}

// explain says what kind of thing an error is and forgets the rest, which may hold an
// address or a header.
func explain(err error) *failure {
	var (
		known   *failure
		dns     *net.DNSError
		timeout interface{ Timeout() bool }
		number  unix.Errno
		cert    *tls.CertificateVerificationError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.Canceled):
		return &failure{"given up", false}
	case errors.As(err, &dns):
		return &failure{"its name can't be looked up", true}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &failure{"no answer in time", true}
	case errors.As(err, &number):
		return &failure{number.Error(), true}
	case errors.As(err, &cert):
		return &failure{"its certificate is not valid", false}
	case errors.As(err, &record):
		return &failure{"does not speak TLS", false}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &failure{"closed the connection", true}
	}
	return wording(err.Error())
}

// wording finds in an error whose causes are lost what may be said of it.
func wording(s string) *failure {
	s = strings.ToLower(s)
	for _, k := range []struct {
		sign, what string
		again      bool
	}{
		{"connection refused", "connection refused", true},
		{"no such host", "its name can't be looked up", true},
		{"server misbehaving", "its name can't be looked up", true},
		{"timeout", "no answer in time", true},
		{"deadline exceeded", "no answer in time", true},
		{"connection reset", "connection reset by peer", true},
		{"unreachable", "network is unreachable", true},
		{"x509", "its certificate is not valid", false},
		{"http response to https client", "does not speak TLS", false},
	} {
		if strings.Contains(s, k.sign) {
			return &failure{k.what, k.again}
		}
	}
	status := regexp.MustCompile(`(?:status|code|got|response)[^0-9a-z]{0,4}(?:code[^0-9a-z]{0,4})?([3-5][0-9][0-9])\b`)
	if m := status.FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[1]) // three digits
		return answered(n)
	}
	return &failure{"did not take it", false}
}
