package screen

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress is a bar on the terminal; where there is none it shows nothing.
type Progress struct{ bar *progressbar.ProgressBar }

// Progress begins a bar that counts things. total is negative where it is not known yet.
func (s *Screen) Progress(what string, total int64) *Progress {
	return s.progress(what, total, progressbar.OptionShowCount(), progressbar.OptionSetElapsedTime(true))
}

// ProgressOfTime begins a bar that nothing is counted on: its text says how far it is.
func (s *Screen) ProgressOfTime(what string, total int64) *Progress {
	return s.progress(what, total, progressbar.OptionSetElapsedTime(false), progressbar.OptionSetPredictTime(false))
}

func (s *Screen) progress(what string, total int64, options ...progressbar.Option) *Progress {
	into := s.Err
	if !isTerminal(s.Err) {
		into = io.Discard
	}
	return &Progress{progressbar.NewOptions64(total, append(options,
		progressbar.OptionSetWriter(into),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(20),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSpinnerType(14),
	)...)}
}

// Set says how far it is, and of how much.
func (p *Progress) Set(done, total int64) {
	if total > 0 && total != p.bar.GetMax64() {
		p.bar.ChangeMax64(max(total, done+1)) // a bar that is full ends
	}
	_ = p.bar.Set64(done) // what the terminal does not take is no fault
}

// Describe changes the text beside the bar.
func (p *Progress) Describe(text string) { p.bar.Describe(text) }

// End takes the bar away.
func (p *Progress) End() { _ = p.bar.Finish() }
