module github.com/signalbox/signalbox/clients/go

go 1.22
