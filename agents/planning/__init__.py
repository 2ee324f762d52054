"""Schedulers: a bandwidth matrix becomes trees and shares. One scheduler a file; `registry` finds them by name."""
