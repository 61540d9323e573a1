package signalbox

import "time"

// moment is a time on the clock that measures leases, since an arbitrary start.
type moment time.Duration

func (m moment) add(span time.Duration) moment { return m + moment(span) }

func (m moment) since(earlier moment) time.Duration { return time.Duration(m - earlier) }

var processStart = time.Now()

// monotonic may stand still while the machine is suspended.
func monotonic() moment { return moment(time.Since(processStart)) }
