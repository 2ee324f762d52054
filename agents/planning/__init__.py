"""Schedulers: link rates become trees and shares. One scheduler a file; `registry` finds them by name."""
