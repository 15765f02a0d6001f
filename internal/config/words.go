package config

import (
	"reflect"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/egress"
)

// words returns the words of an enumerated type; nil when the type is not one.
func words(t reflect.Type) []string {
	switch t {
	case reflect.TypeFor[string]():
		return nil // most texts: no need to look at the rest
	case reflect.TypeFor[Level]():
		return []string{string(LevelDebug), string(LevelInfo), string(LevelWarn), string(LevelError)}
	case reflect.TypeFor[egress.SourceType]():
		return []string{string(egress.SourceDir), string(egress.SourceArchive), string(egress.SourceExec), string(egress.SourceHTTP), string(egress.SourceMullvad)}
	case reflect.TypeFor[egress.Ownership]():
		return []string{string(egress.OwnershipAny), string(egress.OwnershipOwned), string(egress.OwnershipRented)}
	case reflect.TypeFor[egress.Driver]():
		return []string{string(egress.DriverWireGuard), string(egress.DriverAmneziaWG), string(egress.DriverCommands)}
	case reflect.TypeFor[egress.PoolName]():
		return []string{string(egress.PoolNameForeign), string(egress.PoolNameAll), string(egress.PoolNameWorking)}
	case reflect.TypeFor[egress.FailMode]():
		return []string{string(egress.FailDirect), string(egress.FailOtherLane), string(egress.FailClosed)}
	case reflect.TypeFor[egress.NATMode]():
		return []string{string(egress.NATMasquerade), string(egress.NATNone)}
	}
	return edgeWords(t)
}

func edgeWords(t reflect.Type) []string {
	switch t {
	case reflect.TypeFor[edge.Writer]():
		return []string{string(edge.WriterAuto), string(edge.WriterAlways), string(edge.WriterNever)}
	case reflect.TypeFor[edge.Protocol]():
		return []string{string(edge.TCP), string(edge.UDP)}
	case reflect.TypeFor[edge.Strategy]():
		return []string{string(edge.StrategyFirstAvailable)}
	case reflect.TypeFor[edge.SNAT]():
		return []string{string(edge.SNATHairpin), string(edge.SNATAlways)}
	case reflect.TypeFor[edge.OnHint]():
		return []string{string(edge.OnHintConfirm), string(edge.OnHintDivert)}
	case reflect.TypeFor[edge.ProbeType]():
		return []string{
			string(edge.ProbeTCP), string(edge.ProbeTLS), string(edge.ProbeHTTP), string(edge.ProbeStatusPing),
			string(edge.ProbeExec), string(edge.ProbeNone),
		}
	case reflect.TypeFor[edge.AlertType]():
		return []string{string(edge.AlertWebhook), string(edge.AlertCommand), string(edge.AlertService)}
	case reflect.TypeFor[edge.AlertLevel]():
		return []string{string(edge.LevelInfo), string(edge.LevelWarning), string(edge.LevelCritical)}
	}
	return nil
}
